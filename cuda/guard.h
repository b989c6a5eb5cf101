// No C++ exception leaves a C function: it would end the caller's process. Every entry point is written
//   int32_t glt_name(...) try { ... }
//   GLT_CATCH(detail)
// and a test walks the headers and the sources for one that is not.
#pragma once
#include <glt/api.h>

#include <new>
#include <stdexcept>
#include <system_error>

#include "graph.h"

namespace glt {

// The status of the exception that is being handled.
inline int32_t caught(int64_t* detail) noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return fail(detail, GLT_NO_MEMORY);
  } catch (const std::length_error&) {  // more entries than a vector can ever hold
    return fail(detail, GLT_NO_MEMORY);
  } catch (const std::system_error& error) {
    return fail(detail, GLT_NO_THREAD, error.code().value());
  } catch (...) {
    return fail(detail, GLT_THROWN);
  }
}

}  // namespace glt

#define GLT_CATCH(detail) \
  catch (...) { return glt::caught(detail); }
