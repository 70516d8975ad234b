// Files. A read fails unless all requested bytes exist. Errors name `op`, the function that the user called. Writing is
// atomic: a crash, a full disk or a killed process leaves the earlier file unchanged. A FolderLock reserves a folder
// for one run.
#pragma once

#include <sluice/core/memory/no_copy.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace sluice {

/// A regular file open for reading from start to end. Every failure throws IOError naming the path, including a NUL in
/// the path, where the system would end the path.
class FileReader : private NoCopy {
 public:
  explicit FileReader(const std::string& path, const char* op = "read");
  ~FileReader();

  uint64_t size() const { return size_; }
  /// Reads the next `n` bytes; IOError if fewer are left.
  void read(void* to, std::size_t n);
  /// Skips the next `n` bytes.
  void skip(uint64_t n);

 private:
  std::string path_;
  const char* op_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

/// A regular file mapped into memory: the system reads the disk where bytes are touched. Writes stay in this process.
/// Throws as FileReader does. The file must not become shorter meanwhile: touching lost bytes ends the process
/// (SIGBUS).
class MappedFile : private NoCopy {
 public:
  explicit MappedFile(const std::string& path, const char* op = "read");
  ~MappedFile();

  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;  // null for an empty file
  uint64_t size_ = 0;
};

/// Returns the whole file. The system reports its length, so a file in /proc reads as empty. Errors begin with `op`.
std::string read_file(const std::string& path, const char* op = "read_file");

/// Buffered output, for the `body` of write_file_atomically.
class FileWriter {
 public:
  void write(const void* from, std::size_t n);
  void write(const std::string& s) { write(s.data(), s.size()); }

 private:
  friend void write_file_atomically(const std::string&, const std::function<void(FileWriter&)>&, const char*);
  FileWriter(const std::string& path, int fd, const char* op) : path_(path), fd_(fd), op_(op) {}
  void flush();
  void write_through(const char* from, std::size_t n);

  const std::string& path_;
  int fd_;
  const char* op_;
  std::string buffer_;
};

/// Lets `body` write to a temporary file in the same folder, syncs it to the disk and renames it to `path`. If anything
/// throws before the rename, the earlier file stays unchanged and the temporary file is removed. Follows a symbolic
/// link, also to a file that does not exist yet, and keeps an existing file's permissions. Throws IOError if `path` is
/// empty, is not a regular file or has a NUL. First removes what killed processes left of earlier saves to `path`; a
/// save that is still running, in any process, is not disturbed.
void write_file_atomically(const std::string& path, const std::function<void(FileWriter&)>& body,
                           const char* op = "write_file_atomically");

/// A folder that one run writes to. The constructor creates a missing folder. It throws IOError naming the holder if
/// another FolderLock holds the folder for a second longer, in any process of any machine that shares it. The system
/// locks a file in the folder, so the lock ends with its process. On file systems without such locks every FolderLock
/// succeeds.
///
///     const FolderLock mine("out");   // with several ranks, on the first one only
class FolderLock : private NoCopy {
 public:
  explicit FolderLock(const std::string& folder);
  ~FolderLock();

 private:
  std::string path_;
  int process_;  // that holds the lock
  int fd_ = -1;
};

}  // namespace sluice
