// The loop of a gather on a device: finds the rows of ids in shards, and hands each to lanes side by side.
#pragma once
#include "device.cuh"
#include "report.h"
#include "shards.h"

namespace glt {

// Thread k is lane k % kLanes of row k / kLanes.
template <int kLanes, class Body>
struct EachRow {
  Shards shards;
  const int64_t* ids;
  int64_t* error;
  Body body;

  GLT_DEVICE void operator()(int64_t k) const {
    const int64_t i = k / kLanes, id = ids[i];
    const char* row = shards.has(id) ? shards.row(id) : nullptr;
    if (row) body(row, i, uint32_t(k % kLanes), uint32_t(kLanes));
    else if (k % kLanes == 0) report(error, GLT_BAD_ID, i, id);
  }
};

// body(row, i, lane, lanes) for i in [0, n), which writes out_bytes. One access of 16 bytes a lane, up to a warp.
template <class Body>
int32_t each_row(const Shards& a, const int64_t* ids, int64_t n, int64_t out_bytes, const Body& body, int64_t* error,
                 int64_t* detail, void* stream) {
  if (out_bytes <= 16) return for_each(n, EachRow<1, Body>{a, ids, error, body}, stream, detail);
  if (out_bytes <= 128) return for_each(n * 8, EachRow<8, Body>{a, ids, error, body}, stream, detail);
  return for_each(n * 32, EachRow<32, Body>{a, ids, error, body}, stream, detail);
}

}  // namespace glt
