/* A libcuda.so.1 with the real C signatures: what the probe passes through ctypes must arrive here intact. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct { unsigned char bytes[16]; } CUuuid;
typedef void *Handle;

static char context, module, function;
static Handle current;

CUresult cuInit(unsigned int flags) { return flags ? 1 : 0; }
CUresult cuDriverGetVersion(int *version) { *version = 13000; return 0; }
CUresult cuDeviceGetCount(int *count) { *count = 1; return 0; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = 7 + ordinal; return ordinal ? 101 : 0; }
CUresult cuDeviceGetName(char *name, int room, CUdevice device) {
    if (device != 7 || room < 8) return 1;
    strcpy(name, "C card");
    return 0;
}
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    for (int i = 0; i < 16; i++) uuid->bytes[i] = (unsigned char)(0xa0 + i);
    return device != 7;
}
CUresult cuDeviceGetPCIBusId(char *text, int room, CUdevice device) {
    if (device != 7 || room < 13) return 1;
    strcpy(text, "0000:c1:00.0");
    return 0;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) { *bytes = (size_t)96 << 30; return device != 7; }
CUresult cuDevicePrimaryCtxRetain(Handle *out, CUdevice device) { *out = &context; return device != 7; }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return device != 7; }
CUresult cuCtxSetCurrent(Handle wanted) { current = wanted; return wanted != &context; }
CUresult cuCtxSynchronize(void) { return current != &context; }
CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size) {
    *out = (CUdeviceptr)(uintptr_t)malloc(size);
    return size != 1u << 20;
}
CUresult cuMemFree_v2(CUdeviceptr memory) { free((void *)(uintptr_t)memory); return 0; }
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t n) { memcpy((void *)(uintptr_t)to, from, n); return 0; }
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t n) { memcpy(to, (void *)(uintptr_t)from, n); return 0; }
CUresult cuModuleLoadData(Handle *out, const void *image) {
    *out = &module;
    return strstr((const char *)image, ".target sm_52") == NULL;
}
CUresult cuModuleGetFunction(Handle *out, Handle from, const char *name) {
    *out = &function;
    return from != &module || strcmp(name, "gpuctl_probe");
}
CUresult cuModuleUnload(Handle what) { return what != &module; }
CUresult cuLaunchKernel(Handle what, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, Handle stream, void **params, void **extra) {
    if (what != &function || gy != 1 || gz != 1 || by != 1 || bz != 1 || shared || stream || extra) return 1;
    uint32_t *p = (uint32_t *)(uintptr_t) * (CUdeviceptr *)params[0];
    uint32_t n = *(uint32_t *)params[1], seed = *(uint32_t *)params[2];
    for (uint32_t i = 0; i < n && i < gx * bx; i++) p[i] = i * 2654435761u + seed;
    return 0;
}
CUresult cuGetErrorName(CUresult code, const char **out) { *out = "CUDA_ERROR_OF_THE_TEST"; return code == 0; }
