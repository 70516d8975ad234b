#include <sluice/layers/data/gzip.h>

#include <sluice/core/error.h>
#include <sluice/core/text/file.h>

#include <zlib.h>

#include <algorithm>
#include <memory>

namespace sluice {

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

std::string gunzip(std::string_view packed, const std::string& path, uint64_t at_most) {
  std::string out;
  std::size_t at = 0;
  const auto bad = [&](const char* what) {
    fail<IOError>("gunzip: '", path, "': ", what ? what : "damaged", " at byte ", at, " of ", packed.size());
  };
  z_stream stream{};
  if (inflateInit2(&stream, MAX_WBITS + 16) != Z_OK) throw std::bad_alloc();  // + 16: expect a gzip header
  const auto end = [](z_stream* s) { inflateEnd(s); };
  const std::unique_ptr<z_stream, decltype(end)> guard(&stream, end);
  do {  // one member after the other; bytes that do not begin a member are padding
    inflateReset(&stream);
    for (int status = Z_OK; status != Z_STREAM_END;) {
      if (out.size() == at_most) return out;
      const std::size_t before = out.size();
      constexpr std::size_t most_in = std::size_t{1} << 30;  // zlib counts in unsigned int
      const auto given = static_cast<uInt>(std::min(packed.size() - at, most_in));
      const auto room =
          static_cast<uInt>(std::min<uint64_t>(at_most - before, std::clamp<std::size_t>(before, 1 << 16, 1 << 24)));
      out.resize(before + room);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data() + at)), stream.avail_in = given;
      stream.next_out = reinterpret_cast<Bytef*>(out.data() + before), stream.avail_out = room;
      status = inflate(&stream, Z_NO_FLUSH);
      at += given - stream.avail_in;
      out.resize(before + room - stream.avail_out);
      if (status == Z_MEM_ERROR) throw std::bad_alloc();
      if (status == Z_BUF_ERROR || (status == Z_OK && at == packed.size() && stream.avail_out > 0))
        bad("the file ends early");
      if (status != Z_OK && status != Z_STREAM_END) bad(stream.msg);
    }
  } while (is_gzip(packed.substr(at)));
  return out;
}

std::string read_unpacked(const std::string& path, const char* op) {
  std::string bytes = read_file(path, op);
  return is_gzip(bytes) ? gunzip(bytes, path) : bytes;
}

}  // namespace sluice
