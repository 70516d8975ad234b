// Reading of whole files that may be gzip-compressed (RFC 1951, 1952).
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace sluice {

/// True if the bytes begin like a gzip file.
bool is_gzip(std::string_view bytes);

/// Unpacks `packed`, the bytes of a gzip file with one or more members. Returns at most the first `at_most` unpacked
/// bytes. Throws IOError naming `path` and the position for bytes that are not a gzip file, end early, or fail their
/// checksum. The checksum of a member is tested only if the member is unpacked to its end.
std::string gunzip(std::string_view packed, const std::string& path,
                   uint64_t at_most = std::numeric_limits<uint64_t>::max());

/// The bytes of a regular file, unpacked if the file is compressed. Throws IOError; if there is no such file naming
/// `op`.
std::string read_unpacked(const std::string& path, const char* op = "read_unpacked");

}  // namespace sluice
