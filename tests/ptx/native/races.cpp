// Races, by what happens before what: barriers of the block and of lanes order accesses, shuffles and votes do not, and
// blocks are not ordered at all. Two accesses to a byte of which one writes are a race, unless both are atomic or volatile.
#include <array>
#include <memory>
#include <set>
#include <unordered_map>

#include "device.h"

namespace simt {
namespace {

struct Past {
  uint32_t launch = 0, block, thread, clock, barriers;
  int site;
  bool strong;
  uint8_t bytes;  // of the word, a bit each
};

// Of four bytes: the last write to each, and the last few reads.
struct Word {
  Past write[4], read[3];
  int next = 0;
};

constexpr uint64_t kPage = 4096;
using Page = std::array<Word, kPage / 4>;

std::unordered_map<uint64_t, std::unique_ptr<Page>> pages;
std::set<std::pair<const Site*, const Site*>> seen;
uint32_t launch = 0;

Word& word_at(uint64_t address) {
  static uint64_t last_number = 0;
  static Page* last = nullptr;
  const uint64_t number = address / kPage;
  if (!last || number != last_number) {
    auto& page = pages[number];
    if (!page) page = std::make_unique<Page>();
    last = page.get(), last_number = number;
  }
  return (*last)[address % kPage / 4];
}

bool happens_before(const Past& past, const Thread& t) {
  if (past.block != t.block) return false;
  if (past.thread == t.index || past.barriers < t.barriers) return true;
  return past.thread / 32 == t.index / 32 && t.clock[past.thread % 32] > past.clock;
}

void compare(const Past& past, const Thread& t, const Access& access, const char* kind) {
  if (past.launch != launch || (past.strong && access.strong) || happens_before(past, t)) return;
  const Site& before = t.kernel->sites[past.site];
  if (!seen.insert({&before, t.kernel->sites + access.site}).second) return;
  note(std::string("race, ") + kind + ": [" + before.text + "] at " + before.where + " by block " + std::to_string(past.block) +
       " thread " + std::to_string(past.thread) + ", then " + place(t, access.site));
}

}  // namespace

void begin_races() {
  ++launch;
  seen.clear();
}

void look_for_race(const Thread& t, const Access& access) {
  Past mine{launch, t.block, t.index, t.clock[t.lane_of_warp()], t.barriers, access.site, access.strong, 0};
  const uint64_t end = access.address + access.bytes;
  for (uint64_t at = access.address / 4 * 4; at < end; at += 4) {
    Word& word = word_at(at);
    mine.bytes = 0;
    for (uint64_t k = 0; k < 4; ++k)
      if (at + k >= access.address && at + k < end) mine.bytes |= uint8_t(1 << k);
    for (int k = 0; k < 4; ++k) {
      if (!(mine.bytes >> k & 1)) continue;
      compare(word.write[k], t, access, access.write ? "write after write" : "read after write");
      if (access.write) word.write[k] = mine;
    }
    if (access.write) {
      for (const Past& read : word.read)
        if (read.bytes & mine.bytes) compare(read, t, access, "write after read");
    } else {
      word.read[word.next++ % 3] = mine;
    }
  }
}

// The memory is another block's from now on.
void forget_accesses(uint64_t address, uint64_t bytes) {
  for (uint64_t at = address / 4 * 4; at < address + bytes; at += 4) word_at(at) = Word{};
}

}  // namespace simt
