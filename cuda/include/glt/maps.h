// Files that are mapped, and what happens when one of them shrinks. Conventions as in api.h.
#pragma once
#include <glt/api.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GLT_LOST 17  // a map was read past the end that its file has by now

// A read of a page that its file no longer has raises SIGBUS, which ends the process without a message. From the first call of
// glt_maps_add on, a handler of that signal looks for the map. While any thread is between glt_maps_guard(1) and
// glt_maps_guard(0), the handler replaces lost pages by zeros, and the reader goes on, in any thread and library; at the end of
// the guarded time the file is reported. Otherwise the handler writes the file's name to the standard error, and the process
// ends. Signals for addresses in no map are passed to the previous handler.

GLT_API int32_t glt_maps_add(const void* address, int64_t bytes, const char* path);

// Removes a map from the list; to be called before its memory is unmapped.
GLT_API int32_t glt_maps_remove(const void* address);

// Ends the reports about a map. Its owner does not need it any more, but an array may keep it mapped: pages that it has lost, or
// loses from now on, are no error of other guarded blocks. address: anywhere in the map.
GLT_API int32_t glt_maps_forget(const void* address);

// Begins (1) or ends (0) a guarded block. At the end: GLT_LOST if a map has lost pages, until it is removed or forgotten.
GLT_API int32_t glt_maps_guard(int32_t begin);

// Returns GLT_LOST, with the path of a map that has lost pages, if there is one.
GLT_API int32_t glt_maps_lost(char* path, int64_t path_bytes);

#ifdef __cplusplus
}
#endif
