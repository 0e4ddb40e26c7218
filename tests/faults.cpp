// Preloaded into a process, makes one of its system calls fail: the n-th that touches a directory.
//
// What stands between the process and its C library sees every call, whichever module or library
// makes it, and nothing that a call does when it fails is imitated: it returns -1 and sets errno.

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

namespace {

std::recursive_mutex guard;
enum Kind { read_, write_, lock_ };

std::string prefix, calls;
long number = 0, seen = 0, ahead = 0;
int error = 0, without_locks = 0;
bool armed = false, lasting = false, unmappable = false;
Kind failed = read_;

template <typename F>
F real(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

std::string of_descriptor(int descriptor) {
  char link[64], target[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  // A system call of its own: this one is not counted.
  ssize_t length = readlink(link, target, sizeof target);
  return length > 0 ? std::string(target, length) : std::string();
}

std::string at(int directory, const char* path) {
  if (!path) return {};
  if (path[0] == '/' || directory == AT_FDCWD) return path;
  std::string base = of_descriptor(directory);
  return path[0] ? base + "/" + path : base;
}

bool fails(const char* name, Kind kind, const std::string& path) {
  std::lock_guard<std::recursive_mutex> hold(guard);
  if (!armed || prefix.empty() || path.compare(0, prefix.size(), prefix) != 0) return false;
  ++seen;
  const char* kinds[] = {"read", "write", "lock"};
  calls += std::string(kinds[kind]) + " " + name + " " + path.substr(prefix.size()) + "\n";
  if (seen == number) failed = kind;
  bool now = seen == number || (lasting && number > 0 && seen > number && kind == failed);
  if (now) errno = error;
  if (kind == lock_ && without_locks) errno = without_locks;
  return now || (kind == lock_ && without_locks);
}

}  // namespace

extern "C" {

// Fail the n-th call below a directory, and if it lasts every later one of its kind. 0: only count.
void faults_arm(const char* directory, long n, int code, int last) {
  std::lock_guard<std::recursive_mutex> hold(guard);
  prefix = directory;
  calls.clear();
  number = n;
  seen = 0;
  error = code;
  lasting = last;
  armed = true;
}

// The calls so far, a line each: read, write or lock; the function; the path below the directory.
const char* faults_calls() { return calls.c_str(); }

// Nothing below the directory can be locked.
void faults_without_locks(const char* directory, int code) {
  faults_arm(directory, 0, 0, 0);
  without_locks = code;
}

// The clock of this process is ahead of the others', and of the file system's, by so many seconds.
void faults_clock(long seconds) { ahead = seconds; }

// What is below the directory cannot be mapped as code, as on a mount with the option noexec.
void faults_noexec(const char* directory) {
  prefix = directory;
  unmappable = true;
}

#define OPEN(name, directory_parameter, directory, ...)                                   \
  int name(directory_parameter const char* path, int flags, ...) {                        \
    va_list list;                                                                         \
    va_start(list, flags);                                                                \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;               \
    va_end(list);                                                                         \
    Kind kind = flags & (O_CREAT | O_WRONLY | O_RDWR) ? write_ : read_;                   \
    if (fails("open", kind, at(directory, path))) return -1;                              \
    return real<int (*)(directory_parameter const char*, int, ...)>(#name)(__VA_ARGS__);  \
  }
#define COMMA ,
OPEN(open, , AT_FDCWD, path, flags, mode)
OPEN(open64, , AT_FDCWD, path, flags, mode)
OPEN(openat, int directory COMMA, directory, directory, path, flags, mode)
OPEN(openat64, int directory COMMA, directory, directory, path, flags, mode)

#define CALL(result, failure, name, kind, where, parameters, arguments)                   \
  result name parameters {                                                                \
    if (fails(#name, kind, where)) return failure;                                        \
    return real<result(*) parameters>(#name) arguments;                                   \
  }
#define PATH at(AT_FDCWD, path)
CALL(int, -1, mkdir, write_, PATH, (const char* path, mode_t mode), (path, mode))
CALL(int, -1, rmdir, write_, PATH, (const char* path), (path))
CALL(int, -1, unlink, write_, PATH, (const char* path), (path))
CALL(int, -1, unlinkat, write_, at(fd, path), (int fd, const char* path, int flags), (fd, path, flags))
CALL(int, -1, rename, write_, PATH, (const char* path, const char* to), (path, to))
CALL(int, -1, chmod, write_, PATH, (const char* path, mode_t mode), (path, mode))
CALL(int, -1, fchmod, write_, of_descriptor(fd), (int fd, mode_t mode), (fd, mode))
CALL(int, -1, fchmodat, write_, at(fd, path), (int fd, const char* path, mode_t mode, int flags),
     (fd, path, mode, flags))
CALL(int, -1, symlink, write_, at(AT_FDCWD, path), (const char* to, const char* path), (to, path))
CALL(int, -1, utimensat, write_, at(fd, path),
     (int fd, const char* path, const struct timespec* times, int flags), (fd, path, times, flags))
CALL(ssize_t, -1, write, write_, of_descriptor(fd), (int fd, const void* data, size_t size),
     (fd, data, size))
CALL(ssize_t, -1, read, read_, of_descriptor(fd), (int fd, void* data, size_t size),
     (fd, data, size))
CALL(int, -1, fsync, write_, of_descriptor(fd), (int fd), (fd))
CALL(int, -1, flock, lock_, of_descriptor(fd), (int fd, int operation), (fd, operation))
CALL(DIR*, nullptr, opendir, read_, PATH, (const char* path), (path))
CALL(DIR*, nullptr, fdopendir, read_, of_descriptor(fd), (int fd), (fd))
CALL(int, -1, access, read_, PATH, (const char* path, int mode), (path, mode))
// Python calls one of each pair, depending on how it was built. C libraries before 2.33 have none.
#define STAT(name, type)                                                                  \
  CALL(int, -1, name, read_, PATH, (const char* path, struct type* facts), (path, facts))
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)
CALL(int, -1, fstatat, read_, at(fd, path),
     (int fd, const char* path, struct stat* facts, int flags), (fd, path, facts, flags))
CALL(int, -1, fstatat64, read_, at(fd, path),
     (int fd, const char* path, struct stat64* facts, int flags), (fd, path, facts, flags))

// close reports what a network file system could not write. The descriptor is closed all the same.
int close(int descriptor) {
  bool bad = false;
  if (armed) {
    std::string path = of_descriptor(descriptor);
    int flags = fcntl(descriptor, F_GETFL);
    bad = flags != -1 && (flags & O_ACCMODE) != O_RDONLY && fails("close", write_, path);
  }
  int outcome = real<int (*)(int)>("close")(descriptor);
  if (bad) errno = error;
  return bad ? -1 : outcome;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  int outcome = real<int (*)(clockid_t, struct timespec*)>("clock_gettime")(clock, now);
  if (clock == CLOCK_REALTIME && outcome == 0) now->tv_sec += ahead;
  return outcome;
}

static thread_local std::string said;

void* dlopen(const char* path, int flags) {
  if (unmappable && path && std::strncmp(path, prefix.c_str(), prefix.size()) == 0) {
    said = std::string(path) + ": failed to map segment from shared object";
    return nullptr;
  }
  return real<void* (*)(const char*, int)>("dlopen")(path, flags);
}

char* dlerror() {
  if (said.empty()) return real<char* (*)()>("dlerror")();
  static thread_local std::string last;
  last = said;
  said.clear();
  return last.data();
}

#define MMAP(name)                                                                        \
  void* name(void* place, size_t size, int access, int flags, int fd, off_t offset) {     \
    if (unmappable && (access & PROT_EXEC) && fd >= 0 &&                                  \
        of_descriptor(fd).compare(0, prefix.size(), prefix) == 0) {                       \
      errno = EPERM;                                                                      \
      return MAP_FAILED;                                                                  \
    }                                                                                     \
    return real<void* (*)(void*, size_t, int, int, int, off_t)>(#name)(place, size, access, \
                                                                      flags, fd, offset); \
  }
MMAP(mmap)
MMAP(mmap64)

}  // extern "C"
