// Files that are mapped, and what happens when one of them shrinks. Conventions as in api.h.
#pragma once
#include <glt/api.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GLT_LOST 17  // a map was read past the end that its file has by now

// A read of a page that its file no longer has raises SIGBUS, which ends the process without a word. From the first call
// of glt_maps_add on, a handler of that signal looks for the map. While any thread is between glt_maps_guard(1) and
// glt_maps_guard(0), pages of zeros take the place of those that are lost, and the reader goes on, in whatever thread and
// library it is; the end of the guarded time tells which file it was. Otherwise the handler says the file's name on the
// standard error and the process ends. Signals that are about no map go to the handler that was there before.

GLT_API int32_t glt_maps_add(const void* address, int64_t bytes, const char* path);

// Before the memory is unmapped.
GLT_API int32_t glt_maps_remove(const void* address);

// The owner of the map is done with it, but an array may keep it alive: what it has lost, or loses from now on, is nothing
// that the guarded blocks of others tell of. address: anywhere in the map.
GLT_API int32_t glt_maps_forget(const void* address);

// begin: 1 or 0. At the end: GLT_LOST where a map has lost pages, until it is removed or forgotten.
GLT_API int32_t glt_maps_guard(int32_t begin);

// GLT_LOST, with the path of a map that has lost pages, where there is one.
GLT_API int32_t glt_maps_lost(char* path, int64_t path_bytes);

#ifdef __cplusplus
}
#endif
