#include <glt/api.h>

#include "guard.h"

int32_t glt_abi_version(void) { return GLT_ABI_VERSION; }

int32_t glt_widen(const int32_t* in, int64_t n, int64_t* out) try {
  for (int64_t i = 0; i < n; ++i) out[i] = in[i];
  return GLT_OK;
}
GLT_CATCH(nullptr)
