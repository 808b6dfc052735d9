/* libcuda.so.1 of a level-1 lab: cuInit opens the device nodes for real, so that the kernel decides what it answers.
 *
 * No driver can have NVIDIA's numbers here, therefore open(2) of a node which mode bits and device rules let through
 * ends with ENXIO; that counts as opened while /proc/devices lists the number for that driver. Everything else is the
 * kernel's own refusal. Contexts, memory and kernels are not in here: the stand-in in Python has them.
 * GPUCTL_ROOT goes in front of /dev and /proc, as everywhere.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, UNKNOWN = 999 };
enum { CUDA_VERSION = 13000, CONTROL_MINOR = 255 };

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static pid_t initialised_in; /* a forked child has to initialise again */
static int gpus;

static int below_root(char *path, const char *folder, const char *name)
{
    const char *root = getenv("GPUCTL_ROOT");
    int length = snprintf(path, PATH_MAX, "%s%s%s", root ? root : "", folder, name);
    return length > 0 && length < PATH_MAX;
}

/* Whether the character section of /proc/devices gives `number` to `driver`; "" stands for any of NVIDIA's. */
static int listed(unsigned number, const char *driver)
{
    char path[PATH_MAX], line[256], name[128];
    unsigned found;
    int answer = 0;
    FILE *file = below_root(path, "/proc/", "devices") ? fopen(path, "re") : NULL;

    if (!file)
        return 0;
    while (!answer && fgets(line, sizeof line, file) && strncmp(line, "Block", 5) != 0)
        if (sscanf(line, "%u %127s", &found, name) == 2 && found == number)
            answer = *driver ? strcmp(name, driver) == 0 : strncmp(name, "nvidia", 6) == 0;
    fclose(file);
    return answer;
}

/* Whether /dev/NODE is a character device of `driver` that this process may open for reading and writing. */
static int opens(const char *node, const char *driver)
{
    char path[PATH_MAX];
    struct stat found;
    int fd;

    if (!below_root(path, "/dev/", node))
        return 0;
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 && errno != ENXIO)
        return 0;
    if (fd >= 0)
        close(fd);
    /* A plain file opens, too, and another driver may: the real library's ioctl would fail on both. */
    return stat(path, &found) == 0 && S_ISCHR(found.st_mode) && listed(major(found.st_rdev), driver);
}

static int openable_gpus(void)
{
    char path[PATH_MAX], rest;
    struct dirent *entry;
    unsigned minor_number;
    int count = 0;
    DIR *folder = below_root(path, "/dev", "") ? opendir(path) : NULL;

    if (!folder)
        return 0;
    while ((entry = readdir(folder)))
        if (sscanf(entry->d_name, "nvidia%u%c", &minor_number, &rest) == 1 && minor_number < CONTROL_MINOR)
            count += opens(entry->d_name, "");
    closedir(folder);
    return count;
}

int cuInit(unsigned flags)
{
    if (flags)
        return INVALID_VALUE;
    if (!opens("nvidiactl", ""))
        return NO_DEVICE;
    if (!opens("nvidia-uvm", "nvidia-uvm"))
        return UNKNOWN;
    gpus = openable_gpus();
    if (!gpus)
        return NO_DEVICE;
    initialised_in = getpid();
    return SUCCESS;
}

int cuDriverGetVersion(int *version)
{
    if (!version)
        return INVALID_VALUE;
    *version = CUDA_VERSION;
    return SUCCESS;
}

int cuDeviceGetCount(int *count)
{
    if (initialised_in != getpid())
        return NOT_INITIALIZED;
    if (!count)
        return INVALID_VALUE;
    *count = gpus;
    return SUCCESS;
}

static int describe(int code, const char **answer, int name)
{
    size_t i;

    if (!answer)
        return INVALID_VALUE;
    *answer = NULL;
    for (i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) {
            *answer = name ? errors[i].name : errors[i].text;
            return SUCCESS;
        }
    return INVALID_VALUE;
}

int cuGetErrorName(int code, const char **name)
{
    return describe(code, name, 1);
}

int cuGetErrorString(int code, const char **text)
{
    return describe(code, text, 0);
}
