// The scan alone, with bodies that say what they were asked.
#include <glt/cuda.h>

#include "scan.cuh"

namespace {

struct CaseOfScan {
  int64_t n;
  const uint32_t* values;
  int64_t *before, *calls, *total;

  GLT_DEVICE int64_t size() const { return n; }
  GLT_DEVICE void count(int k) const { glt::Atomic::add(reinterpret_cast<uint64_t*>(calls + k), 1); }
  GLT_DEVICE uint32_t value(int64_t i) const {
    count(0);
    return values[i];
  }
  GLT_DEVICE void place(int64_t i, int64_t sum, uint32_t) const {
    count(1);
    before[i] = sum;
  }
  GLT_DEVICE void finish(int64_t sum) const {
    count(2);
    *total = sum;
  }
};

}  // namespace

// state: scan_words(bound) words, zero.  calls [3]: of value, place and finish.
extern "C" GLT_API int32_t simt_scan(int64_t bound, int64_t n, const uint32_t* values, int64_t* before, int64_t* calls,
                                     int64_t* total, uint64_t* state, int64_t* detail, void* stream) {
  return glt::scan_each(bound, CaseOfScan{n, values, before, calls, total}, state, stream, detail);
}
