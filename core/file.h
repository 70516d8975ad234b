// Files. Reading checks what was asked for against what is there; writing is atomic: a crash, a
// full disk or a killed process leaves the earlier file as it was. A run can have a folder for itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace sluice {

/// A regular file open for reading from start to end. Every failure is an IOError naming the path. A path with a NUL is
/// one, too: the system would take the NUL for the path's end.
class FileReader {
 public:
  explicit FileReader(const std::string& path);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  uint64_t size() const { return size_; }
  /// The next `n` bytes, all of them.
  void read(void* to, std::size_t n);
  /// Goes on after them.
  void skip(uint64_t n);

 private:
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

/// The whole file.
std::string read_file(const std::string& path);

/// What a writer of write_file_atomically writes to; buffered.
class FileWriter {
 public:
  void write(const void* from, std::size_t n);
  void write(const std::string& s) { write(s.data(), s.size()); }

 private:
  friend void write_file_atomically(const std::string&, const std::function<void(FileWriter&)>&);
  FileWriter(const std::string& path, int fd) : path_(path), fd_(fd) {}
  void flush();
  void write_through(const char* from, std::size_t n);

  const std::string& path_;
  int fd_;
  std::string buffer_;
};

/// Lets `body` write to a temporary file in the same folder, syncs it to the disk and renames it to
/// `path`. If anything throws, the earlier file is whole and the temporary file gone. A symbolic
/// link is followed, an existing file's permissions are kept; IOError if `path` is not a regular
/// file or has a NUL. What a killed process left of an earlier save to `path` is removed first; a save that is
/// still running, in any process, is not disturbed.
void write_file_atomically(const std::string& path, const std::function<void(FileWriter&)>& body);

/// A folder that one run writes to. The constructor makes the folder where it is missing. A second FolderLock of the same
/// folder, in any process of any machine that shares it, is an IOError that names the holder. The lock is the system's, on
/// a file in the folder, so a killed process holds nothing. File systems without such locks give the folder to everybody.
///
///     const FolderLock mine("out");   // of several ranks, the first has it
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace sluice
