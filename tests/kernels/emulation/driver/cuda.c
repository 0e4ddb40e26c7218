// In place of the CUDA runtime and driver: notes what csrc/cuda/enqueue.cuh asks of them, and runs nothing.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct {
  unsigned x, y, z;
} Dim3;

enum { kSuccess = 0, kInvalidValue = 1, kMaxStaticShared = 48 << 10, kMaxShared = 232448 };

// Set by the tests.
int device, launch_error, driver_version = 13000;
// Read by them.
int launches, attributes_set, attributes_read, maps_encoded, pending;
unsigned last_grid, last_threads, last_attributes;
size_t last_shared;
void* last_stream;

static int shared_allowed[8];
static Dim3 next_grid, next_threads;
static size_t next_shared;
static void* next_stream;

int cudaGetDevice(int* which) {
  *which = device;
  return kSuccess;
}
int cudaSetDevice(int which) {
  device = which;
  return kSuccess;
}
int cudaDriverGetVersion(int* version) {
  *version = driver_version;
  return kSuccess;
}
int cudaDeviceGetAttribute(int* value, int attribute, int which) {
  *value = 132;
  return kSuccess;
}
int cudaFuncSetAttribute(const void* function, int attribute, int value) {
  ++attributes_set;
  if (value > kMaxShared) return pending = kInvalidValue;
  if (value > shared_allowed[device]) shared_allowed[device] = value;  // of all kernels, which this does not tell apart
  return kSuccess;
}
int cudaFuncGetAttributes(void* attributes, const void* function) {
  ++attributes_read;
  return kSuccess;
}
typedef struct {
  Dim3 grid, threads;
  size_t shared;
  void* stream;
  void* attributes;
  unsigned count;
} Launch;

int cudaLaunchKernelExC(const Launch* launch, const void* function, void** arguments) {
  if (launch_error) return pending = launch_error;
  if (launch->shared > kMaxStaticShared && launch->shared > (size_t)shared_allowed[device]) return pending = kInvalidValue;
  ++launches;
  last_grid = launch->grid.x;
  last_threads = launch->threads.x;
  last_shared = launch->shared;
  last_stream = launch->stream;
  last_attributes = launch->count;
  return kSuccess;
}
int cudaGetLastError(void) {
  const int error = pending;
  pending = kSuccess;
  return error;
}
const char* cudaGetErrorString(int error) {
  static char text[32];
  snprintf(text, sizeof text, "error %d", error);
  return text;
}

// What nvcc makes of <<<>>> and of a translation unit with kernels.
unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 threads, size_t shared, void* stream) {
  next_grid = grid;
  next_threads = threads;
  next_shared = shared;
  next_stream = stream;
  return kSuccess;
}
int __cudaPopCallConfiguration(Dim3* grid, Dim3* threads, size_t* shared, void* stream) {
  *grid = next_grid;
  *threads = next_threads;
  *shared = next_shared;
  *(void**)stream = next_stream;
  return kSuccess;
}
int __cudaGetKernel(void** kernel, const void* function) {
  *kernel = (void*)function;
  return kSuccess;
}
// The kernel's own stub, through which nobody launches it.
int __cudaLaunchKernel(const void* function, Dim3 grid, Dim3 threads, void** arguments, size_t shared, void* stream) {
  return kInvalidValue;
}
void** __cudaRegisterFatBinary(void* binary) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void** handle) {}
void __cudaUnregisterFatBinary(void** handle) {}
void __cudaRegisterFunction(void** handle, const char* host, char* fun, const char* name, int limit, void* thread, void* block,
                            void* block_size, void* grid_size, int* warps) {}
void __cudaRegisterVar(void** handle, char* host, char* address, const char* name, int external, size_t size, int constant, int global) {}
char __cudaInitModule(void** handle) { return 1; }

// As the driver judges a map: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TENSOR__MEMORY.html
int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* base, const uint64_t* extents, const uint64_t* strides,
                           const uint32_t* box, const uint32_t* steps, int interleave, int swizzle, int promotion, int fill) {
  if ((uintptr_t)base % 16) return kInvalidValue;
  for (unsigned i = 0; i < rank; ++i) {
    if (extents[i] == 0 || extents[i] > (uint64_t)1 << 32 || box[i] == 0 || box[i] > 256) return kInvalidValue;
    if (i + 1 < rank && (strides[i] % 16 || strides[i] >= (uint64_t)1 << 40)) return kInvalidValue;
  }
  ++maps_encoded;
  memset(map, 0, 128);
  return kSuccess;
}
