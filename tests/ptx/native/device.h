// The device's parts, among themselves: memory, findings, races, and the running of a grid.
#pragma once
#include "simt.h"

namespace simt {

// How the next grids run. seed: of all orders; taken on by each launch.  fine: threads are held at plain accesses, too.
// races: those are looked for.
struct Schedule {
  uint64_t seed = 1;
  bool fine = false, races = false;
};
extern Schedule schedule;

// --- memory.cpp: what kernels may touch, to the byte
bool may_touch(uint64_t address, uint64_t bytes);

// --- findings
void note(const std::string& finding);
std::string place(const Thread&, int site);
[[noreturn]] void fail(const Thread&, int site, const char* what);  // notes it and ends the grid; called in a fiber

// --- races.cpp
void begin_races();
void look_for_race(const Thread&, const Access&);
void forget_accesses(uint64_t address, uint64_t bytes);

// --- grid.cpp
bool run_grid(const Kernel&, uint32_t num_blocks, uint32_t num_threads, const char* params);  // false: it was ended
}  // namespace simt
