// As much of the CUDA runtime as nvcc's host code and this project ask for, on the emulated device; and what tests ask of it.
// A launch runs at once, whatever its stream.
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "device.h"

namespace simt {
namespace {

constexpr uint32_t kMaxThreads = 1024, kMaxShared = 48 << 10, kMaxParams = 4096;

std::recursive_mutex device;
std::vector<std::string> findings;
std::map<std::string, int64_t> launches;
std::string planted;
thread_local cudaError_t last_error = cudaSuccess;

std::vector<Kernel>& kernels() {
  static std::vector<Kernel> all;
  return all;
}

std::map<const void*, std::string>& names() {
  static std::map<const void*, std::string> all;
  return all;
}

// Memory: an arena, of which bits tell byte for byte what was given out, and registered memory of the host.
uint64_t arena = 0, arena_bytes = 0;
std::vector<uint64_t> given;
std::map<uint64_t, uint64_t> registered;  // bytes by address

cudaError_t told(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

const Kernel* find(const std::string& name, const std::string& fault) {
  for (const Kernel& kernel : kernels())
    if (name == kernel.name && fault == kernel.fault) return &kernel;
  return nullptr;
}

cudaError_t launch(const std::string& name, dim3 grid, dim3 block, void** args, size_t shared) {
  const std::lock_guard<std::recursive_mutex> lock(device);
  const Kernel* kernel = find(name, planted);
  if (!kernel) kernel = find(name, "");
  if (!kernel) return cudaErrorInvalidDeviceFunction;
  const bool flat = grid.y == 1 && grid.z == 1 && block.y == 1 && block.z == 1;
  const uint32_t max_threads = kernel->max_threads ? kernel->max_threads : kMaxThreads;
  if (!flat || !grid.x || grid.x > INT32_MAX || !block.x || block.x > max_threads || shared || kernel->shared_bytes > kMaxShared)
    return cudaErrorInvalidConfiguration;
  uint32_t end = 0;
  for (const Parameter& p : kernel->params) end = std::max(end, p.offset + p.bytes);
  if (end > kMaxParams) return cudaErrorInvalidValue;
  std::vector<uint64_t> params(end / 8 + 1);
  char* const at = reinterpret_cast<char*>(params.data());
  for (size_t k = 0; k < kernel->params.size(); ++k) std::memcpy(at + kernel->params[k].offset, args[k], kernel->params[k].bytes);
  ++launches[name];
  return run_grid(*kernel, grid.x, block.x, at) ? cudaSuccess : cudaErrorLaunchFailure;
}

struct Configuration {
  dim3 grid, block;
  size_t shared;
  void* stream;
};
thread_local Configuration configuration;

}  // namespace

Enter::Enter(std::vector<Kernel> more) {
  for (Kernel& kernel : more) kernels().push_back(std::move(kernel));
}

bool may_touch(uint64_t address, uint64_t bytes) {
  if (address >= arena && address + bytes <= arena + arena_bytes) {
    for (uint64_t k = address - arena; k < address - arena + bytes; ++k)
      if (!(given[k / 64] >> k % 64 & 1)) return false;
    return true;
  }
  const auto next = registered.upper_bound(address);
  return next != registered.begin() && address + bytes <= std::prev(next)->first + std::prev(next)->second;
}

void note(const std::string& finding) { findings.push_back(finding); }

std::string place(const Thread& t, int site) {
  const Site& at = t.kernel->sites[site];
  return std::string("[") + at.text + "] at " + at.where + " by block " + std::to_string(t.block) + " thread " +
         std::to_string(t.index) + " of " + t.kernel->name;
}

}  // namespace simt

using namespace simt;

extern "C" {

// --- what nvcc's host code calls
void** __cudaRegisterFatBinary(void*) {
  static void* none;
  return &none;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*, void*, void*, void*, int*) {
  names()[function] = name;
}
cudaError_t __cudaGetKernel(void** kernel, const void* function) {
  *kernel = const_cast<void*>(function);
  return cudaSuccess;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid, *block = configuration.block, *shared = configuration.shared;
  *static_cast<void**>(stream) = configuration.stream;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(void* function, dim3 grid, dim3 block, void** args, size_t shared, void*) {
  return told(launch(names()[function], grid, block, args, shared));
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** args, size_t shared, cudaStream_t) {
  return told(launch(names()[function], grid, block, args, shared));
}

// --- what the project calls
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t) { return "the emulated device found an error"; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 9, cudaSuccess; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, const void* function) {
  *found = {};
  return find(names()[function], "") ? cudaSuccess : told(cudaErrorInvalidDeviceFunction);
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t) {
  const std::lock_guard<std::recursive_mutex> lock(device);
  if (!may_touch(reinterpret_cast<uint64_t>(p), bytes)) {
    note("a memset outside of the memory it was given, of " + std::to_string(bytes) + " bytes");
    return told(cudaErrorInvalidValue);
  }
  std::memset(p, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned) {
  const std::lock_guard<std::recursive_mutex> lock(device);
  const uint64_t begin = reinterpret_cast<uint64_t>(p);
  for (const auto& [other, size] : registered)
    if (begin < other + size && other < begin + bytes) return told(cudaErrorHostMemoryAlreadyRegistered);
  registered[begin] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** on_device, void* p, unsigned) {
  *on_device = p;
  return registered.count(reinterpret_cast<uint64_t>(p)) ? cudaSuccess : told(cudaErrorInvalidValue);
}
cudaError_t cudaHostUnregister(void* p) {
  const std::lock_guard<std::recursive_mutex> lock(device);
  return registered.erase(reinterpret_cast<uint64_t>(p)) ? cudaSuccess : told(cudaErrorHostMemoryNotRegistered);
}

// --- what tests call
#define SIMT_API __attribute__((visibility("default")))

SIMT_API void simt_arena(uint64_t address, uint64_t bytes) {
  arena = address, arena_bytes = bytes;
  given.assign(bytes / 64 + 1, 0);
}
SIMT_API void simt_give(uint64_t address, uint64_t bytes) {
  for (uint64_t k = address - arena; k < address - arena + bytes; ++k) given[k / 64] |= uint64_t(1) << k % 64;
}
SIMT_API void simt_schedule(uint64_t seed, int32_t fine, int32_t races) { schedule = {seed, fine != 0, races != 0}; }
SIMT_API void simt_plant(const char* fault) { planted = fault; }
SIMT_API int64_t simt_num_kernels() { return int64_t(kernels().size()); }
SIMT_API const char* simt_kernel(int64_t k) { return kernels()[k].fault[0] ? "" : kernels()[k].name; }
SIMT_API int64_t simt_launches(const char* kernel) { return launches[kernel]; }
SIMT_API int64_t simt_num_findings() { return int64_t(findings.size()); }
SIMT_API const char* simt_finding(int64_t k) { return findings[k].c_str(); }
SIMT_API void simt_forget_findings() { findings.clear(); }

}  // extern "C"
