/* libnvrtc: programs are not compiled; the driver takes the name of a function for it. */
#include <stddef.h>

enum { MAJOR = 13, MINOR = 0 };
static char program;

int nvrtcVersion(int *major, int *minor) { return *major = MAJOR, *minor = MINOR, 0; }
int nvrtcCreateProgram(void **out, const char *source, const char *name, int headers,
                       const char *const *texts, const char *const *names) {
    return *out = &program, 0;
}
int nvrtcDestroyProgram(void **out) { return *out = NULL, 0; }
int nvrtcGetPTXSize(void *made, size_t *size) { return *size = 1, 0; }
int nvrtcGetPTX(void *made, char *out) { return *out = 0, 0; }
int nvrtcGetCUBINSize(void *made, size_t *size) { return *size = 1, 0; }
int nvrtcGetCUBIN(void *made, char *out) { return *out = 0, 0; }
