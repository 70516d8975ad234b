// Damaged files of every format that the library reads. An error is a sluice::Error with the path in it and changes
// nothing; a file that is accepted gives the same twice, and the whole file still gives what it always gave.
#include "fuzz/kinds.h"
#include "support/folders.h"
#include "support/small_run.h"
#include "support/temp_folder.h"

#include <sluice/core/text/file.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/data/csv.h>
#include <sluice/layers/data/gzip.h>
#include <sluice/layers/data/idx.h>
#include <sluice/layers/data/npy.h>
#include <sluice/layers/data/text.h>
#include <sluice/layers/port/tokenizer.h>
#include <sluice/layers/table.h>
#include <sluice/layers/train/log.h>
#include <sluice/ops/shape/create.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <zlib.h>

namespace sluice::testing {

namespace {

struct Format {
  std::string name, whole;
  /// Reads a file; everything that came of it.
  std::function<std::string(const std::string& path)> read;
  /// What reading may change, though not when it fails.
  std::function<std::string()> state = [] { return std::string(); };
  bool is_text = false;     // no path is known: an error need not name it
  std::string result = {};  // of the whole file
};

std::string gzipped(const std::string& bytes) {
  z_stream z{};
  deflateInit2(&z, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&z, bytes.size()) + 64, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data())), z.avail_in = static_cast<uInt>(bytes.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data()), z.avail_out = static_cast<uInt>(out.size());
  deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

std::string text_of(const SafeTensors& f) {
  std::string s;
  for (const auto& [key, value] : f.metadata) s += str(key, "=", value, "\n");
  for (const auto& [name, x] : f.tensors) s += str(name, " ", x.dtype(), x.shape(), "\n"), append_bytes(s, x);
  return s;
}
std::string text_of(const Csv& csv) {
  std::string s = str(csv.rows(), " rows\n");
  for (const std::string& name : csv.names) s += name + "\n";
  for (const std::string& cell : csv.cells) s += cell + "\n";
  append_bytes(s, csv.columns({csv.names.at(0), csv.names.back()}, f64));
  std::vector<std::string> classes;
  append_bytes(s, csv.classes(csv.names.at(0), classes));
  return s;
}

/// One of each format, as the library writes it or would read it.
std::vector<Format>& formats(const TempFolder& folder) {
  static std::vector<Format> all = [&] {
    std::vector<Format> v;
    const std::string path = folder / "whole";
    auto add_written = [&](const char* name, auto read) -> Format& {
      return v.emplace_back(Format{name, read_file(path), read});
    };
    Rng rng(1);
    SafeTensors tensors{{{"a", normal({3, 4}, 0, 1, rng)},
                         {"b", to(normal({5}, 0, 1, rng), bf16)},
                         {"c", arange(0, 6)},
                         {"d", to(arange(0, 3), boolean)},
                         {"e", empty({0, 4})}},
                        {{"key", "valué"}}};
    save_safetensors(path, tensors);
    add_written("safetensors", [](const std::string& p) { return text_of(load_safetensors(p)); });

    auto run = std::make_shared<SmallRun>(2);
    SmallRun(1).save(path);
    add_written("checkpoint", [run](const std::string& p) {
      run->load(p);
      return run->bytes();
    }).state = [run] { return run->bytes(); };
    const LayerRow& row = layer_row("gau");
    row.make(row.samples[1], rng)->save(path);
    const std::shared_ptr<AnyLayer> layer = row.make(row.samples[1], rng);
    add_written("model", [layer](const std::string& p) {
      std::string s;
      for (const NamedTensor& t : layer->reloaded(p)->state()) append_bytes(s, t.tensor);
      return s;
    });
    std::filesystem::remove(path);
    {
      CsvLog log(path, {"step", "loss"});
      for (int i = 0; i < 9; ++i) log.append({double(i), 1.0 / (1 + i)});
    }
    add_written("log", [](const std::string& p) {
      const CsvLog log(p, {"step", "loss"}, 6);
      std::string s = read_file(p);
      for (const auto& r : log.rows()) s += str(r.at(0), " ", r.at(1), "\n");
      return s;
    });

    std::string idx("\0\0\x08\x03\0\0\0\x02\0\0\0\x03\0\0\0\x05", 16), csv = "name,\"the size\",price\n", prose;
    for (int i = 0; i < 30; ++i) idx += static_cast<char>(i * 7);
    for (int i = 0; i < 20; ++i) csv += str(i, ",\"a ", i, ", \"\"b\"\"\",", 1.5 * i, i % 2 ? "\r\n" : "\n");
    for (int i = 0; i < 300; ++i) prose += str(i * i, " ");
    auto shape_and_bytes = [](const Tensor& x) {
      std::string s = str(x.shape());
      append_bytes(s, x);
      return s;
    };
    auto read_tensor = [=](const std::string& p) { return shape_and_bytes(read_idx(p, f64)); };
    write_npy(path, normal({3, 4}, 0, 1, rng));
    add_written("npy", [=](const std::string& p) { return shape_and_bytes(read_npy(p)); });
    v.push_back(
        {"tokenizer", read_file(source_folder() + "/examples/data/chat/tokenizer.json"), [](const std::string& p) {
           const Tokenizer words = Tokenizer::from_file(p);
           const std::vector<int64_t> ids = words.encode("the gate opens, \xc3\xa9\n 12 <s>");
           return str(words.size(), " ", detail::joined(ids), " ", words.decode(ids));
         }});
    auto read_prose = [](const std::string& p) { return read_text(p); };
    auto read_table = [](const std::string& p) { return text_of(read_csv(p)); };
    v.push_back({"idx", idx, read_tensor}), v.push_back({"idx.gz", gzipped(idx), read_tensor});
    v.push_back({"csv", csv, read_table}), v.push_back({"csv.gz", gzipped(csv), read_table});
    v.push_back({"text.gz", gzipped(prose) + gzipped(csv), read_prose});
    auto read_json = [](const std::string& p) {
      const Json j = parse_json(read_file(p));
      if (!(parse_json(to_text(j)) == j)) fail<AutogradError>("what was written is not what was read: ", to_text(j));
      return to_text(j, 2);
    };
    v.push_back(
        {.name = "json", .whole = to_text(detail::to_json(layer->options()), 2), .read = read_json, .is_text = true});
    auto read_options = [&row](const std::string& p) {
      const LayerDraft draft = row.draft();
      detail::from_json("gau", parse_json(read_file(p)), draft.options);
      return to_text(detail::to_json(draft.options));
    };
    v.push_back({.name = "options", .whole = v.back().whole, .read = read_options, .is_text = true});
    return v;
  }();
  return all;
}

/// `bytes` after a few changes of one kind each; `other` is a file to take pieces of.
std::string damaged(std::string bytes, const std::string& other, Draw& draw, std::string& text) {
  auto place = [&](std::size_t size) {  // near the beginning more often than not: there most is said
    const auto n = static_cast<int64_t>(size);
    return static_cast<std::size_t>(draw.below(1 + (draw.chance(0.5) ? std::min<int64_t>(n, 400) : n)));
  };
  for (int64_t changes = 1 + draw.below(3); changes > 0; --changes) {
    const std::size_t at = place(bytes.size());
    const std::size_t n = std::min(bytes.size() - at, place(draw.chance(0.5) ? 8 : bytes.size()));
    std::string piece = other.substr(std::min(at, other.size()), n);
    const std::size_t digit = std::min(bytes.find_first_of("0123456789", at), bytes.size());
    switch (draw.below(8)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << draw.below(8)));
        break;
      case 1: bytes.resize(at); break;
      case 2: bytes.erase(at, n); break;
      case 3: bytes.insert(at, bytes.substr(at, n)); break;
      case 4: bytes.replace(at, n, piece); break;
      case 5: bytes.insert(at, piece); break;
      case 6:
        for (std::size_t i = at; i < at + n; ++i) bytes[i] = static_cast<char>(draw.below(256));
        break;
      default:
        if (digit < bytes.size()) bytes.replace(digit, 1, str(draw.chance(0.3) ? draw.hostile() : draw.below(100)));
    }
    text += str("change ", at, "+", n, ", ");
  }
  return bytes;
}

}  // namespace

void draw_file(Draw& draw, Report& report) {
  static const TempFolder folder;
  std::vector<Format>& all = formats(folder);
  auto any = [&]() -> Format& { return all[static_cast<std::size_t>(draw.below(std::ssize(all)))]; };
  Format& format = any();
  std::string text = format.name + ": ";
  report.at(text);
  const std::string path = folder / ("some." + format.name), before = format.state();
  auto put = [&](const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; };
  auto wrong = [&](const std::string& what) { report.wrong(draw, text + what); };
  const std::string bytes = damaged(format.whole, any().whole, draw, text);
  put(bytes);
  ++report.counts["files"];
  try {
    const std::string once = format.read(path);
    ++report.counts["accepted"];
    put(bytes);  // a log has cut it
    if (format.read(path) != once) wrong("the same file is read differently the second time");
  } catch (const Error& e) {
    if (format.state() != before) wrong(str("it changed something, then failed: ", e.what()));
    const bool named = std::string_view(e.what()).find(path) != std::string_view::npos;
    if (!format.is_text && !named) wrong(str("the error does not name the file: ", e.what()));
    if (dynamic_cast<const AutogradError*>(&e)) wrong(e.what());
  }
  if (!draw.chance(0.1) && !format.result.empty()) return;
  put(format.whole);
  const std::string result = format.read(path);
  if (format.result.empty()) format.result = result;
  if (result != format.result) wrong("afterwards the whole file is read differently");
}

}  // namespace sluice::testing
