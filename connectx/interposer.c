// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Shows a program RDMA devices that another process has. Loaded by LD_PRELOAD; knows nothing of RDMA.
 *
 * - Paths that begin with one of `shown` lead into the folder CONNECTX_ROOT.
 * - Opening /dev/infiniband/uverbsN gives a socket to the device process that looks like that character device. What is
 *   written to it goes there, and the answer is an errno. Each of its pages that is mapped is plain memory of this
 *   process, which nobody reads. ioctl() knows no command: libibverbs then uses write().
 * - A netlink socket for RDMA is a socket to the device process, too.
 *
 * The device process reads and writes the memory of this one (process_vm_readv(2)), so answers need not come this way.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

/* Kernel: drivers/infiniband/core/uverbs_main.c */
#define UVERBS_MAJOR 231
#define UVERBS_FIRST_MINOR 192

#define DEVICES "/dev/infiniband"
static const char *const shown[] = { "/sys/class/infiniband", DEVICES };

enum kind { OTHER, UVERBS, NETLINK };

/* What the descriptors of this process are. `inode` tells whether a number still is what it was: descriptors are closed
 * in more ways than can be watched. */
#define DESCRIPTORS 65536
static struct {
    unsigned char kind;
    unsigned char number; /* N of uverbsN */
    ino_t inode;
} descriptors[DESCRIPTORS];

/* One question at a time on each socket, and there are few. */
static pthread_mutex_t talking = PTHREAD_MUTEX_INITIALIZER;

/* The C library's function of this name. */
#define NEXT(name)                                                                                                     \
    ({                                                                                                                 \
        static __typeof__(&name) found;                                                                                \
        if (!found)                                                                                                    \
            found = (__typeof__(&name))next(#name);                                                                    \
        found;                                                                                                         \
    })

static void *next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);

    if (!found) {
        fprintf(stderr, "connectx: the C library has no %s\n", name);
        abort();
    }
    return found;
}

static const char *root(void)
{
    return getenv("CONNECTX_ROOT");
}

/* The path to use for this one: itself, or one in `buffer`. */
static const char *redirect(const char *path, char buffer[PATH_MAX])
{
    const char *folder = root();

    for (size_t i = 0; path && folder && i < sizeof(shown) / sizeof(*shown); i++)
        if (!strncmp(path, shown[i], strlen(shown[i]))) {
            if (snprintf(buffer, PATH_MAX, "%s%s", folder, path) >= PATH_MAX)
                return path;
            return buffer;
        }
    return path;
}

static ino_t inode_of(int fd)
{
    struct statx status;

    return syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_INO, &status) ? 0 : (ino_t)status.stx_ino;
}

static enum kind kind_of(int fd)
{
    if (fd < 0 || fd >= DESCRIPTORS || descriptors[fd].kind == OTHER)
        return OTHER;
    if (inode_of(fd) != descriptors[fd].inode)
        descriptors[fd].kind = OTHER;
    return descriptors[fd].kind;
}

static ssize_t send_packet(int fd, const void *data, size_t length)
{
    struct iovec part = { (void *)data, length };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

    ssize_t sent;

    do
        sent = syscall(SYS_sendmsg, fd, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent;
}

static int device_is_gone(void)
{
    static int said;

    if (!said++)
        fprintf(stderr, "connectx: the process that is the simulated HCA is gone\n");
    return EIO;
}

/* Receive an answer: an errno, and perhaps a descriptor. Returns the errno. */
static int receive_answer(int fd, int *passed)
{
    int answer = 0;
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec part = { &answer, sizeof(answer) };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control),
    };
    struct cmsghdr *header;
    ssize_t got;

    do
        got = syscall(SYS_recvmsg, fd, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    *passed = -1;
    if (got != sizeof(answer))
        return device_is_gone();
    header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_type == SCM_RIGHTS)
        memcpy(passed, CMSG_DATA(header), sizeof(*passed));
    return answer;
}

/* Ask the device process, and tell it the number of each descriptor that it passes. Returns an errno. */
static int ask(int fd, const void *data, size_t length)
{
    int error, passed;

    pthread_mutex_lock(&talking);
    error = send_packet(fd, data, length) < 0 ? device_is_gone() : receive_answer(fd, &passed);
    while (!error && passed >= 0)
        error = send_packet(fd, &passed, sizeof(passed)) < 0 ? device_is_gone() : receive_answer(fd, &passed);
    pthread_mutex_unlock(&talking);
    return error;
}

/* A socket to the device process that begins with `greeting`; -1 and errno if there is none. */
static int connect_to_device(const char *greeting, enum kind kind, unsigned number, int flags)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd, error;

    if (!root() || snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", root()) >=
                       (int)sizeof(address.sun_path)) {
        errno = ENXIO;
        return -1;
    }
    fd = syscall(SYS_socket, AF_UNIX, SOCK_SEQPACKET | flags, 0);
    if (fd < 0)
        return -1;
    if (fd >= DESCRIPTORS)
        error = EMFILE;
    else if (syscall(SYS_connect, fd, &address, sizeof(address)))
        error = ENXIO;
    else
        error = ask(fd, greeting, strlen(greeting));
    if (error) {
        syscall(SYS_close, fd);
        errno = error;
        return -1;
    }
    descriptors[fd].inode = inode_of(fd);
    descriptors[fd].number = number;
    descriptors[fd].kind = kind;
    return fd;
}

/* Is this the path of a device, and which one? */
static int is_device(const char *path, unsigned *number)
{
    char buffer[PATH_MAX];
    int end = 0;

    if (!path || sscanf(path, DEVICES "/uverbs%u%n", number, &end) != 1 || path[end])
        return 0;
    return !syscall(SYS_faccessat, AT_FDCWD, redirect(path, buffer), F_OK);
}

/* Nothing ever comes from this socket; it ends with the device process. */
static void *await_end(void *socket)
{
    char nothing;

    syscall(SYS_recvfrom, (int)(intptr_t)socket, &nothing, 1, 0, NULL, NULL);
    device_is_gone();
    kill(getpid(), SIGTERM);
    return NULL;
}

/* A program that polls a completion queue asks nobody, and would never hear that the device process is gone. */
static void watch_device(void)
{
    sigset_t all, before;
    pthread_t thread;
    int fd = connect_to_device("lifeline", OTHER, 0, SOCK_CLOEXEC);

    if (fd < 0)
        return;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, await_end, (void *)(intptr_t)fd))
        syscall(SYS_close, fd);
    else
        pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static int open_device(const char *path, unsigned number, int flags)
{
    static pthread_once_t watched = PTHREAD_ONCE_INIT;
    /* Where only descendants may be read (Yama), so may a daemon that is none any more. */
    const char *device = getenv("CONNECTX_PID");

    if (device)
        prctl(PR_SET_PTRACER, strtoul(device, NULL, 10), 0, 0, 0);
    pthread_once(&watched, watch_device);
    return connect_to_device(path + strlen(DEVICES "/"), UVERBS, number, flags & O_CLOEXEC ? SOCK_CLOEXEC : 0);
}

/* Opening */

#define OPEN(name, declared, passed)                                                                                   \
    int name declared                                                                                                  \
    {                                                                                                                  \
        char buffer[PATH_MAX];                                                                                         \
        unsigned number;                                                                                               \
        mode_t mode = 0;                                                                                               \
        va_list rest;                                                                                                  \
                                                                                                                       \
        if (flags & (O_CREAT | O_TMPFILE)) {                                                                           \
            va_start(rest, flags);                                                                                     \
            mode = va_arg(rest, mode_t);                                                                               \
            va_end(rest);                                                                                              \
        }                                                                                                              \
        if (is_device(path, &number))                                                                                  \
            return open_device(path, number, flags);                                                                   \
        path = redirect(path, buffer);                                                                                 \
        return NEXT(name) passed;                                                                                      \
    }

#define OPEN_2(name, declared, passed)                                                                                 \
    int name declared;                                                                                                 \
    int name declared                                                                                                  \
    {                                                                                                                  \
        char buffer[PATH_MAX];                                                                                         \
        unsigned number;                                                                                               \
                                                                                                                       \
        if (is_device(path, &number))                                                                                  \
            return open_device(path, number, flags);                                                                   \
        path = redirect(path, buffer);                                                                                 \
        return NEXT(name) passed;                                                                                      \
    }

OPEN(open, (const char *path, int flags, ...), (path, flags, mode))
OPEN(open64, (const char *path, int flags, ...), (path, flags, mode))
OPEN(openat, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
OPEN(openat64, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
OPEN_2(__open_2, (const char *path, int flags), (path, flags))
OPEN_2(__open64_2, (const char *path, int flags), (path, flags))
OPEN_2(__openat_2, (int folder, const char *path, int flags), (folder, path, flags))
OPEN_2(__openat64_2, (int folder, const char *path, int flags), (folder, path, flags))

#define PATH(result, name, declared, passed)                                                                           \
    result name declared;                                                                                              \
    result name declared                                                                                               \
    {                                                                                                                  \
        char buffer[PATH_MAX];                                                                                         \
                                                                                                                       \
        path = redirect(path, buffer);                                                                                 \
        return NEXT(name) passed;                                                                                      \
    }

PATH(FILE *, fopen, (const char *path, const char *mode), (path, mode))
PATH(FILE *, fopen64, (const char *path, const char *mode), (path, mode))
PATH(DIR *, opendir, (const char *path), (path))
PATH(int, access, (const char *path, int mode), (path, mode))
PATH(int, faccessat, (int folder, const char *path, int mode, int flags), (folder, path, mode, flags))
PATH(ssize_t, readlink, (const char *path, char *to, size_t size), (path, to, size))
PATH(ssize_t, readlinkat, (int folder, const char *path, char *to, size_t size), (folder, path, to, size))
PATH(char *, realpath, (const char *path, char *to), (path, to))
PATH(int, statx, (int folder, const char *path, int flags, unsigned mask, struct statx *status),
     (folder, path, flags, mask, status))
PATH(int, stat, (const char *path, struct stat *status), (path, status))
PATH(int, stat64, (const char *path, struct stat64 *status), (path, status))
PATH(int, lstat, (const char *path, struct stat *status), (path, status))
PATH(int, lstat64, (const char *path, struct stat64 *status), (path, status))
PATH(int, fstatat, (int folder, const char *path, struct stat *status, int flags), (folder, path, status, flags))
PATH(int, fstatat64, (int folder, const char *path, struct stat64 *status, int flags), (folder, path, status, flags))
/* What programs call that were built with a C library before 2.33. */
PATH(int, __xstat, (int version, const char *path, struct stat *status), (version, path, status))
PATH(int, __xstat64, (int version, const char *path, struct stat64 *status), (version, path, status))
PATH(int, __lxstat, (int version, const char *path, struct stat *status), (version, path, status))
PATH(int, __lxstat64, (int version, const char *path, struct stat64 *status), (version, path, status))

#define FSTAT(name, type, declared, passed)                                                                            \
    int name declared;                                                                                                 \
    int name declared                                                                                                  \
    {                                                                                                                  \
        int result = NEXT(name) passed;                                                                                \
                                                                                                                       \
        if (!result && kind_of(fd) == UVERBS) {                                                                        \
            status->st_mode = S_IFCHR | 0666;                                                                          \
            status->st_rdev = makedev(UVERBS_MAJOR, UVERBS_FIRST_MINOR + descriptors[fd].number);                      \
        }                                                                                                              \
        return result;                                                                                                 \
    }

FSTAT(fstat, struct stat, (int fd, struct stat *status), (fd, status))
FSTAT(fstat64, struct stat64, (int fd, struct stat64 *status), (fd, status))
FSTAT(__fxstat, struct stat, (int version, int fd, struct stat *status), (version, fd, status))
FSTAT(__fxstat64, struct stat64, (int version, int fd, struct stat64 *status), (version, fd, status))

/* An open device */

ssize_t write(int fd, const void *data, size_t length)
{
    int error;

    if (kind_of(fd) != UVERBS)
        return NEXT(write)(fd, data, length);
    error = ask(fd, data, length);
    if (!error)
        return length;
    errno = error;
    return -1;
}

int ioctl(int fd, unsigned long request, ...)
{
    va_list rest;
    void *argument;

    va_start(rest, request);
    argument = va_arg(rest, void *);
    va_end(rest);
    if (kind_of(fd) != UVERBS)
        return NEXT(ioctl)(fd, request, argument);
    errno = EPROTONOSUPPORT;
    return -1;
}

#define MMAP(name, offset_type)                                                                                        \
    void *name(void *address, size_t length, int protection, int flags, int fd, offset_type offset)                    \
    {                                                                                                                  \
        if (fd >= 0 && kind_of(fd) == UVERBS)                                                                          \
            return NEXT(name)(address, length, protection | PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);            \
        return NEXT(name)(address, length, protection, flags, fd, offset);                                             \
    }

MMAP(mmap, off_t)
MMAP(mmap64, off64_t)

/* RDMA netlink. Addresses mean nothing on this socket; programs want to see the kernel's. */

static void name_kernel(struct sockaddr *address, socklen_t *length, pid_t pid)
{
    struct sockaddr_nl kernel = { .nl_family = AF_NETLINK, .nl_pid = pid };

    if (!address)
        return;
    memcpy(address, &kernel, *length < sizeof(kernel) ? *length : sizeof(kernel));
    *length = sizeof(kernel);
}

int socket(int domain, int type, int protocol)
{
    if (domain == AF_NETLINK && protocol == NETLINK_RDMA && root())
        return connect_to_device("netlink", NETLINK, 0, type & (SOCK_CLOEXEC | SOCK_NONBLOCK));
    return NEXT(socket)(domain, type, protocol);
}

int bind(int fd, const struct sockaddr *address, socklen_t length)
{
    return kind_of(fd) == NETLINK ? 0 : NEXT(bind)(fd, address, length);
}

int getsockname(int fd, struct sockaddr *address, socklen_t *length)
{
    if (kind_of(fd) != NETLINK)
        return NEXT(getsockname)(fd, address, length);
    name_kernel(address, length, getpid());
    return 0;
}

int setsockopt(int fd, int level, int option, const void *value, socklen_t length)
{
    if (level == SOL_NETLINK && kind_of(fd) == NETLINK)
        return 0;
    return NEXT(setsockopt)(fd, level, option, value, length);
}

ssize_t sendto(int fd, const void *data, size_t length, int flags, const struct sockaddr *address, socklen_t size)
{
    if (kind_of(fd) == NETLINK)
        address = NULL, size = 0;
    return NEXT(sendto)(fd, data, length, flags, address, size);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    struct msghdr unnamed;

    if (kind_of(fd) != NETLINK)
        return NEXT(sendmsg)(fd, message, flags);
    unnamed = *message;
    unnamed.msg_name = NULL;
    unnamed.msg_namelen = 0;
    unnamed.msg_control = NULL;
    unnamed.msg_controllen = 0;
    return NEXT(sendmsg)(fd, &unnamed, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    void *name = message->msg_name;
    socklen_t room = message->msg_namelen;
    ssize_t got = NEXT(recvmsg)(fd, message, flags);

    if (got >= 0 && kind_of(fd) == NETLINK) {
        name_kernel(name, &room, 0);
        message->msg_namelen = room;
    }
    return got;
}
