// Files that may be gzip-compressed (RFC 1951, 1952), read whole.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace sluice {

/// Whether bytes begin as a gzip file does.
bool is_gzip(std::string_view bytes);

/// What `packed`, the bytes of a gzip file of one or more members, unpacks to; no more than its first `at_most` bytes.
/// IOError naming `path` and the place for bytes that are no such file, end early, or fail their checksum (which is
/// tested where a member is unpacked to its end).
std::string gunzip(std::string_view packed, const std::string& path,
                   uint64_t at_most = std::numeric_limits<uint64_t>::max());

/// The bytes of a regular file, unpacked if it is compressed.
std::string read_unpacked(const std::string& path);

}  // namespace sluice
