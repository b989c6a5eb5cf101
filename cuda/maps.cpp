// Why no sigsetjmp around the kernels instead: a jump over C++ frames frees nothing they own and joins no thread, and the
// reads of numpy and torch have no frame of ours. Zeros in place of lost pages are what a damaged file may hold anyway:
// every kernel bears them.
#include <glt/maps.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "guard.h"

namespace glt {
namespace {

struct Map {
  std::atomic<uintptr_t> begin{0};  // 0: free to be taken again; the handler may be looking at it, so none is deleted
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> lost{false};
  std::atomic<bool> forgotten{false};  // true once no guarded block reads it any more: its losses do not count
  char path[4096];
  Map* next = nullptr;
};

std::mutex changing;
std::atomic<Map*> maps{nullptr};
std::atomic<int32_t> guards{0}, lost{0};
struct sigaction before;

Map* find(uintptr_t address) {
  for (Map* map = maps.load(); map; map = map->next)
    if (map->begin <= address && address < map->end) return map;
  return nullptr;
}

void say(const char* text) { (void)!write(STDERR_FILENO, text, strlen(text)); }

// Maps zeros from the page of `address` to the end of the map: a truncated file has lost all pages behind the first lost one.
bool fill(Map* map, uintptr_t address) {
  const uintptr_t page = address & ~uintptr_t(sysconf(_SC_PAGESIZE) - 1);
  return mmap(reinterpret_cast<void*>(page), map->end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
         MAP_FAILED;
}

void pass_on(int number, siginfo_t* info, void* context) {
  if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(number, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) return before.sa_handler(number);
  signal(number, SIG_DFL);
  raise(number);  // takes effect when this handler returns
}

void on_bus_error(int number, siginfo_t* info, void* context) {
  const int kept = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  Map* map = info->si_code > 0 ? find(address) : nullptr;  // else a process has sent the signal
  if (map && guards > 0 && fill(map, address)) {
    if (!map->forgotten && !map->lost.exchange(true)) ++lost;
    errno = kept;
    return;
  }
  if (map) {
    say("glt_lightning: ");
    say(map->path);
    say(": was truncated or became unreadable while this process was reading it (SIGBUS).\n");
  }
  errno = kept;
  pass_on(number, info, context);
}

void install() {
  struct sigaction ours = {};
  ours.sa_sigaction = on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGBUS, &ours, &before);
}

Map* take() {
  for (Map* map = maps.load(); map; map = map->next)
    if (map->begin == 0) return map;
  Map* map = new Map;
  map->next = maps.load();
  maps.store(map);
  return map;
}

}  // namespace
}  // namespace glt

int32_t glt_maps_add(const void* address, int64_t bytes, const char* path) try {
  static std::once_flag installed;
  std::call_once(installed, glt::install);
  const std::lock_guard<std::mutex> lock(glt::changing);
  glt::Map* map = glt::take();
  snprintf(map->path, sizeof map->path, "%s", path);
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
  map->forgotten = false;
  map->end = begin + (uintptr_t(bytes) + page - 1) / page * page;
  map->begin = begin;
  return GLT_OK;
}
GLT_CATCH(nullptr)

int32_t glt_maps_remove(const void* address) try {
  const std::lock_guard<std::mutex> lock(glt::changing);
  glt::Map* map = glt::find(reinterpret_cast<uintptr_t>(address));
  if (!map) return GLT_BAD_ARG;
  if (map->lost.exchange(false)) --glt::lost;
  map->begin = map->end = 0;
  return GLT_OK;
}
GLT_CATCH(nullptr)

int32_t glt_maps_forget(const void* address) try {
  const std::lock_guard<std::mutex> lock(glt::changing);
  glt::Map* map = glt::find(reinterpret_cast<uintptr_t>(address));
  if (!map) return GLT_BAD_ARG;
  map->forgotten = true;
  if (map->lost.exchange(false)) --glt::lost;
  return GLT_OK;
}
GLT_CATCH(nullptr)

int32_t glt_maps_guard(int32_t begin) try {
  glt::guards += begin ? 1 : -1;
  return !begin && glt::lost > 0 ? GLT_LOST : GLT_OK;
}
GLT_CATCH(nullptr)

int32_t glt_maps_lost(char* path, int64_t path_bytes) try {
  for (const glt::Map* map = glt::maps.load(); map; map = map->next) {
    if (!map->lost) continue;
    snprintf(path, size_t(path_bytes), "%s", map->path);
    return GLT_LOST;
  }
  return GLT_OK;
}
GLT_CATCH(nullptr)
