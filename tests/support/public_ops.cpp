#include "support/public_ops.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

namespace sluice::testing {

std::vector<PublicOp> public_ops(const std::string& source_dir) {
  namespace fs = std::filesystem;
  std::vector<fs::path> headers;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(source_dir) / "ops"))
    if (entry.path().extension() == ".h") headers.push_back(entry.path());
  std::sort(headers.begin(), headers.end());

  std::vector<std::vector<std::string>> texts;
  std::string returns = "Tensor|Tensors|std::vector<Tensor>|std::(?:pair|tuple|array)<Tensor[^(]*>";
  const std::regex opens_struct(R"(^struct (\w+)\s*(?:final\s*)?\{(.*))"), member(R"(\bTensors?\s+\w+\s*(?:[;,=]))");
  for (const fs::path& h : headers) {
    // Lines of namespace sluice itself: not of sluice::detail, sluice::formula or a nested namespace.
    std::ifstream in(h);
    std::vector<std::string> kept;
    bool own = false, inside_struct = false;
    std::string name;
    for (std::string line; std::getline(in, line);) {
      if (line.rfind("namespace ", 0) == 0 && line.find('{') != std::string::npos)
        own = line.rfind("namespace sluice {", 0) == 0;
      else if (line.rfind("}  // namespace", 0) == 0)
        own = line.find("sluice") == std::string::npos;  // back from detail to sluice
      if (!own) continue;
      kept.push_back(line);
      std::smatch m;
      std::string body;
      if (std::regex_search(line, m, opens_struct)) name = m[1], body = m[2], inside_struct = true;
      else if (inside_struct) body = line;
      body = body.substr(0, body.find("//"));
      if (inside_struct && std::regex_search(body, member) && body.find('(') == std::string::npos)
        returns += "|" + name, inside_struct = false;
      if (line.rfind("}", 0) == 0) inside_struct = false;
    }
    texts.push_back(std::move(kept));
  }

  std::vector<PublicOp> ops;
  std::set<std::string> seen;
  const std::regex declaration("^(?:template <.*> )?(?:inline )?(?:" + returns + R"() (\w+)\()");
  for (std::size_t i = 0; i < headers.size(); ++i)
    for (const std::string& line : texts[i]) {
      std::smatch m;
      if (!std::regex_search(line, m, declaration)) continue;
      const std::string name = m[1];
      if (name.back() == '_' || !seen.insert(name).second) continue;
      ops.push_back({name, headers[i].filename().string()});
    }
  return ops;
}

}  // namespace sluice::testing
