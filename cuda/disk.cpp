// Reading scattered rows of files. Page faults would read them one after the other, and fill the page cache with neighbouring
// rows that are not needed; here some threads keep the disk busy, each with its own buffer.
#include <glt/disk.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "graph.h"
#include "guard.h"
#include "shards.h"

namespace glt {
namespace {

constexpr int64_t kPage = GLT_DISK_PAGE;

struct Free {
  void operator()(char* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<char, Free>;

Buffer aligned(int64_t bytes) { return Buffer(static_cast<char*>(std::aligned_alloc(kPage, bytes))); }

// Whole pages of one file, and the wanted rows in them.
struct Read {
  int32_t shard;
  int64_t first, last;  // positions in `wanted`
  int64_t begin, end;   // bytes in the file
};

struct Failure {
  int32_t shard, error;
  int64_t offset, got;
};

std::vector<Read> plan(const glt_disk& disk, const int64_t* wanted, int64_t n) {
  std::vector<Read> reads;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t s = shard_of(disk.bounds, disk.num_shards, wanted[i]);
    const int64_t row = disk.offsets[s] + (wanted[i] - disk.bounds[s]) * disk.row_bytes;
    const int64_t begin = row / kPage * kPage, end = (row + disk.row_bytes + kPage - 1) / kPage * kPage;
    if (!reads.empty()) {
      Read& before = reads.back();
      if (before.shard == s && begin - before.end <= disk.gap_bytes && end - before.begin <= disk.most_bytes) {
        before.last = i + 1, before.end = end;
        continue;
      }
    }
    reads.push_back({s, i, i + 1, begin, end});
  }
  return reads;
}

class Reader {
 public:
  Reader(const glt_disk& disk, const int64_t* wanted, char* out, std::vector<Read> reads)
      : disk_(disk), wanted_(wanted), out_(out), reads_(std::move(reads)) {
    for (const Read& r : reads_) longest_ = std::max(longest_, r.end - r.begin);
  }

  // The loop of a thread: takes reads until none is left. Stops all threads at the first failure.
  void work() {
    const Buffer buffer = aligned(longest_);
    for (size_t i; (i = next_++) < reads_.size();) {
      const Failure failure = buffer ? one(reads_[i], buffer.get()) : Failure{reads_[i].shard, ENOMEM, 0, 0};
      if (failure.shard >= 0) {
        next_ = reads_.size();
        if (!failed_.exchange(true)) failure_ = failure;
        return;
      }
    }
  }

  // The failure, or null; to be called when no thread works any more, since no lock guards it.
  const Failure* failure() const { return failed_ ? &failure_ : nullptr; }

 private:
  Failure one(const Read& read, char* buffer) const {
    const int fd = disk_.fds[read.shard];
    const int64_t first_row = disk_.offsets[read.shard] - disk_.bounds[read.shard] * disk_.row_bytes;
    const int64_t needed = first_row + (wanted_[read.last - 1] + 1) * disk_.row_bytes - read.begin;
    int64_t got = 0;
    while (got < needed) {  // the last page of a file is seldom a whole one
      const ssize_t more = pread(fd, buffer + got, read.end - read.begin - got, read.begin + got);
      if (more < 0 && errno == EINTR) continue;
      if (more < 0) return {read.shard, errno, read.begin + got, got};
      got += more;
      const bool is_end = more == 0 || got % kPage;  // a direct read cannot go on from within a page
      if (got < needed && is_end) return {read.shard, 0, read.begin, got};
    }
    if (!disk_.direct[read.shard]) posix_fadvise(fd, read.begin, read.end - read.begin, POSIX_FADV_DONTNEED);
    for (int64_t i = read.first; i < read.last; ++i)
      std::memcpy(out_ + i * disk_.row_bytes, buffer + (first_row + wanted_[i] * disk_.row_bytes - read.begin),
                  disk_.row_bytes);
    return {-1, 0, 0, 0};
  }

  const glt_disk& disk_;
  const int64_t* wanted_;
  char* out_;
  std::vector<Read> reads_;
  int64_t longest_ = kPage;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  Failure failure_{};
};

}  // namespace
}  // namespace glt

int32_t glt_disk_find(const glt_disk* disk, const int64_t* ids, int64_t n, int64_t end, int64_t* places, int64_t* wanted,
                      int64_t* counts, int64_t* detail) try {
  const glt::Shards a{nullptr, disk->bounds, disk->num_shards, disk->row_bytes};
  std::vector<std::pair<int64_t, int64_t>> found;  // id, position
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] >= end) return glt::fail(detail, GLT_BAD_ID, i, ids[i]);
    places[i] = ids[i];
    if (a.has(ids[i]) && disk->fds[glt::shard_of(a.bounds, a.count, ids[i])] >= 0) found.emplace_back(ids[i], i);
  }
  std::sort(found.begin(), found.end());
  int64_t count = 0;
  for (const auto& [id, i] : found) {
    if (!count || wanted[count - 1] != id) wanted[count++] = id;
    places[i] = end + count - 1;
  }
  counts[0] = count, counts[1] = found.size();
  return GLT_OK;
}
GLT_CATCH(detail)

int32_t glt_disk_read(const glt_disk* disk, const int64_t* wanted, int64_t n, int32_t threads, void* out,
                      int64_t* bytes_read, int64_t* detail) try {
  std::vector<glt::Read> reads = glt::plan(*disk, wanted, n);
  *bytes_read = 0;
  for (const glt::Read& r : reads) *bytes_read += r.end - r.begin;
  const int64_t most = std::min<int64_t>(threads, reads.size());
  glt::Reader reader(*disk, wanted, static_cast<char*>(out), std::move(reads));
  std::vector<std::thread> others;
  try {
    others.reserve(std::max<int64_t>(most, 0));
    for (int64_t t = 1; t < most; ++t) others.emplace_back([&] { reader.work(); });
  } catch (const std::system_error&) {  // the system has no more threads: those that run, and this one, do all the work
  }
  reader.work();
  for (auto& o : others) o.join();
  if (const glt::Failure* f = reader.failure()) return glt::fail(detail, GLT_IO, f->shard, f->error, f->offset, f->got);
  return GLT_OK;
}
GLT_CATCH(detail)

int32_t glt_disk_try(int32_t fd) {
  const glt::Buffer buffer = glt::aligned(glt::kPage);
  if (!buffer) return ENOMEM;
  return pread(fd, buffer.get(), glt::kPage, 0) < 0 ? errno : 0;
}
