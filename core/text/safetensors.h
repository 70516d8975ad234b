// The safetensors file format (Hugging Face): named tensors and string metadata, safe to load from
// anywhere. Files are exchanged with Python's `safetensors` in both directions.
//
//   u64 little-endian N │ N bytes of JSON, padded with spaces │ the tensors' bytes, back to back
#pragma once

#include <sluice/core/tensor.h>

#include <functional>
#include <map>
#include <string>

namespace sluice {

/// The contents of a file.
struct SafeTensors {
  std::map<std::string, Tensor> tensors;        // by name, on cpu
  std::map<std::string, std::string> metadata;  // the header's __metadata__

  /// The metadata entry "format", which says who wrote the file; empty without one.
  std::string format() const {
    const auto entry = metadata.find("format");
    return entry == metadata.end() ? "" : entry->second;
  }
};

/// Reads f32, f64, bf16, i64, i32 and bool tensors; F16 as f32, F8 (E4M3, E5M2, E8M0) as bf16, U8, I8, U16 and I16 as
/// i32, U32 and U64 as i64, all exactly. Throws IOError with the path and the reason for a file that is not well-formed
/// or holds another dtype, or a U64 beyond i64; the text begins with `op`. Memory for tensors is taken only after
/// the whole header has been checked against the size of the file. `wanted` is called once for each name; tensors for
/// which it returns false are skipped whatever their dtype, and cost neither memory nor time.
SafeTensors load_safetensors(const std::string& path, const std::function<bool(const std::string&)>& wanted = {},
                             const char* op = "load_safetensors");

/// load_safetensors() without copies: the tensors are the file's own memory, see MappedFile. Copies tensors that are
/// read as another dtype or are not aligned for their own. In-place edits stay in this process.
SafeTensors map_safetensors(const std::string& path, const std::function<bool(const std::string&)>& wanted = {},
                            const char* op = "map_safetensors");

/// Writes atomically (see write_file_atomically). Tensors of any layout are written row-major. Throws IOError for
/// undefined tensors, for the name "__metadata__", and for names or metadata that are not UTF-8; DeviceError on meta.
void save_safetensors(const std::string& path, const SafeTensors& file, const char* op = "save_safetensors");

}  // namespace sluice
