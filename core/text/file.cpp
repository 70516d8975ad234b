#include <sluice/core/text/file.h>

#include <sluice/core/error.h>
#include <sluice/core/text/utf8.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

namespace sluice {

namespace {

constexpr std::size_t kBuffer = std::size_t{1} << 16;

std::string reason(int error) { return std::system_category().message(error); }

/// The system would end the path at a NUL and open another file.
void refuse_nul(const char* op, const std::string& path) {
  if (path.find('\0') == std::string::npos) return;
  std::string shown;
  for (const char c : path) c == '\0' ? shown += "\\0" : shown += c;
  fail<IOError>(op, ": the path '", shown, "' has a NUL, which no file's name has");
}

/// Closes the descriptor on every path out of a scope.
struct Descriptor : NoCopy {
  int fd;
  explicit Descriptor(int f) : fd(f) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

/// A new locked file, called prefix + process + "." + number + ".tmp". Whoever can lock such a file knows that its
/// writer is dead. The kernel drops the lock with the process, also in a container or on another machine, where process
/// numbers say nothing.
int create_locked(const std::string& prefix, std::string& path) {
  static std::atomic<unsigned> counter{0};
  for (;;) {
    path = str(prefix, int{::getpid()}, ".", counter++, ".tmp");
    Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.fd < 0 && errno == EEXIST) continue;  // of another process with the same process number
    if (file.fd < 0) return -1;
    // Another save may remove the file before it is locked, because it looks abandoned; then the file has no name.
    struct stat info;
    if (::flock(file.fd, LOCK_EX | LOCK_NB) == 0 ? ::fstat(file.fd, &info) == 0 && info.st_nlink > 0
                                                 : errno != EWOULDBLOCK)  // a file system without locks
      return std::exchange(file.fd, -1);
  }
}

/// prefix + process + "." + number + ".tmp".
bool is_temporary(const std::string& name, const std::string& prefix) {
  if (name.size() < prefix.size() + 7 || !name.starts_with(prefix) || !name.ends_with(".tmp")) return false;
  const std::string numbers = name.substr(prefix.size(), name.size() - prefix.size() - 4);
  const std::size_t dot = numbers.find('.');
  return numbers.find_first_not_of("0123456789.") == std::string::npos && dot == numbers.rfind('.') && dot > 0 &&
         dot < numbers.size() - 1;
}

/// Where a file called `path` is, or will be: a link is followed, also to a file that does not exist yet. Otherwise the
/// rename would replace the link and not the file that it names.
std::filesystem::path followed(const char* op, const std::string& path) {
  std::error_code error, no_link;
  std::filesystem::path target = std::filesystem::absolute(path, error);
  if (!error) target = std::filesystem::weakly_canonical(target, error);
  while (!error && std::filesystem::is_symlink(target, no_link)) {
    const std::filesystem::path next = target.parent_path() / std::filesystem::read_symlink(target, error);
    if (!error) target = std::filesystem::weakly_canonical(next, error);
  }
  if (error) fail<IOError>(op, ": cannot write '", path, "': ", error.message());
  return target;
}

/// Removes what killed writers left: files with that prefix that no process has locked.
void remove_abandoned(const std::filesystem::path& folder, const std::string& prefix) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (!is_temporary(it->path().filename().string(), prefix)) continue;
    Descriptor file(::open(it->path().c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat info;
    if (file.fd >= 0 && ::fstat(file.fd, &info) == 0 && S_ISREG(info.st_mode) &&
        ::flock(file.fd, LOCK_EX | LOCK_NB) == 0)
      ::unlink(it->path().c_str());
  }
}

/// A descriptor of the regular file, and its size.
int open_regular(const char* op, const std::string& path, uint64_t& size) {
  refuse_nul(op, path);
  // Not blocking: opening a pipe would otherwise wait for a writer before fstat can refuse it.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd < 0) fail<IOError>(op, ": cannot open '", path, "': ", reason(errno));
  struct stat info;
  if (::fstat(file.fd, &info) != 0) fail<IOError>(op, ": cannot read '", path, "': ", reason(errno));
  if (!S_ISREG(info.st_mode))
    fail<IOError>(op, ": '", path, "' is ", S_ISDIR(info.st_mode) ? "a folder, " : "", "not a regular file");
  size = static_cast<uint64_t>(info.st_size);
  return std::exchange(file.fd, -1);
}

}  // namespace

FileReader::FileReader(const std::string& path, const char* op) : path_(path), op_(op) {
  fd_ = open_regular(op, path, size_);
}

FileReader::~FileReader() { ::close(fd_); }

void FileReader::read(void* to, std::size_t n) {
  for (char* p = static_cast<char*>(to); n > 0;) {
    ssize_t got = ::read(fd_, p, std::min(n, std::size_t{1} << 30));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail<IOError>(op_, ": cannot read '", path_, "': ", reason(errno));
    if (got == 0) fail<IOError>(op_, ": '", path_, "' ended early: ", n, " bytes are missing");
    p += got, n -= static_cast<std::size_t>(got);
  }
}

void FileReader::skip(uint64_t n) {
  if (::lseek(fd_, static_cast<off_t>(n), SEEK_CUR) < 0)
    fail<IOError>(op_, ": cannot read '", path_, "': ", reason(errno));
}

MappedFile::MappedFile(const std::string& path, const char* op) {
  const Descriptor file(open_regular(op, path, size_));
  if (size_ == 0) return;
  // No swap is reserved: pages are the file's until they are written.
  void* const at = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.fd, 0);
  if (at == MAP_FAILED) fail<IOError>(op, ": cannot map '", path, "' into memory: ", reason(errno));
  data_ = static_cast<std::byte*>(at);
}
MappedFile::~MappedFile() {
  if (data_) ::munmap(data_, size_);
}

std::string read_file(const std::string& path, const char* op) {
  FileReader file(path, op);
  std::string text(file.size(), '\0');
  file.read(text.data(), text.size());
  return text;
}

void FileWriter::write_through(const char* from, std::size_t n) {
  while (n > 0) {
    ssize_t put = ::write(fd_, from, std::min(n, std::size_t{1} << 30));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail<IOError>(op_, ": cannot write '", path_, "': ", reason(errno));
    from += put, n -= static_cast<std::size_t>(put);
  }
}

void FileWriter::flush() {
  write_through(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void FileWriter::write(const void* from, std::size_t n) {
  if (buffer_.size() + n > kBuffer) flush();
  if (n > kBuffer) return write_through(static_cast<const char*>(from), n);
  buffer_.append(static_cast<const char*>(from), n);
}

void write_file_atomically(const std::string& path, const std::function<void(FileWriter&)>& body, const char* op) {
  refuse_nul(op, path);
  const std::filesystem::path target = followed(op, path), folder = target.parent_path();

  struct stat earlier;
  const bool exists = ::stat(target.c_str(), &earlier) == 0;
  if (exists && !S_ISREG(earlier.st_mode)) fail<IOError>(op, ": '", path, "' exists and is not a regular file");
  Descriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.fd < 0) fail<IOError>(op, ": cannot open the folder of '", path, "': ", reason(errno));

  std::string name = target.filename().string();
  if (name.size() > 200)
    name.resize(detail::char_begin(name, 200));  // with process and number it has at most 255 bytes
  const std::string prefix = str(".", name, ".");
  remove_abandoned(folder, prefix);
  std::string temporary;
  Descriptor file(create_locked((folder / prefix).string(), temporary));
  if (file.fd < 0) fail<IOError>(op, ": cannot create a file beside '", path, "': ", reason(errno));
  const Descriptor lock(::dup(file.fd));  // held until the file has its name

  try {
    FileWriter writer(path, file.fd, op);
    body(writer);
    writer.flush();
    if (exists && ::fchmod(file.fd, earlier.st_mode & 07777) != 0)
      fail<IOError>(op, ": cannot keep the permissions of '", path, "': ", reason(errno));
    if (::fsync(file.fd) != 0) fail<IOError>(op, ": cannot sync '", path, "': ", reason(errno));
    if (::close(std::exchange(file.fd, -1)) != 0) fail<IOError>(op, ": cannot close '", path, "': ", reason(errno));
    if (::rename(temporary.c_str(), target.c_str()) != 0)
      fail<IOError>(op, ": cannot rename to '", path, "': ", reason(errno));
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  // Makes the rename itself durable. Some file systems cannot sync a folder and say EINVAL.
  if (::fsync(directory.fd) != 0 && errno != EINVAL)
    fail<IOError>(op, ": cannot sync the folder of '", path, "': ", reason(errno));
}

FolderLock::FolderLock(const std::string& folder) : process_(::getpid()) {
  refuse_nul("folder_lock", folder);
  std::error_code error;
  path_ = (std::filesystem::absolute(folder, error) / ".lock").string();  // the program may change its folder
  std::filesystem::create_directories(folder, error);
  if (error) fail<IOError>("folder_lock: cannot make the folder '", folder, "': ", error.message());
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);  // a killed process ends soon
  for (;;) {
    Descriptor file(::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (file.fd < 0) fail<IOError>("folder_lock: cannot write to the folder '", folder, "': ", reason(errno));
    if (::flock(file.fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      if (std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        continue;
      }
      char holder[300];
      const ssize_t got = ::pread(file.fd, holder, sizeof holder, 0);
      fail<IOError>("folder_lock: the folder '", folder, "' is in use by ",
                    got > 0 ? std::string_view(holder, static_cast<std::size_t>(got)) : "another run",
                    "; wait until it ends, or choose another folder");
    }
    struct stat info;
    if (::fstat(file.fd, &info) == 0 && info.st_nlink == 0) continue;  // its last holder has just removed it
    char host[256] = "";                                               // POSIX allows 255
    ::gethostname(host, sizeof host - 1);
    const std::string holder = str("process ", int{::getpid()}, " of ", host);
    // Replaces a dead holder's text. The text serves messages only, so a failed write is ignored.
    if (::ftruncate(file.fd, 0) != 0 || ::pwrite(file.fd, holder.data(), holder.size(), 0) < 0) errno = 0;
    fd_ = std::exchange(file.fd, -1);
    return;
  }
}

FolderLock::~FolderLock() {
  if (::getpid() == process_)  // the lock is not that of a forked child
    ::unlink(path_.c_str());   // before the lock ends, so that whoever opened the file before sees that it is gone
  ::close(fd_);
}

}  // namespace sluice
