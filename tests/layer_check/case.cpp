#include "layer_check/case.h"

#include "support/approx.h"
#include "support/catch.h"
#include "support/temp_folder.h"

#include <fstream>
#include <sstream>

#include <sys/wait.h>

namespace sluice::testing {

namespace {

std::string in_quotes(const std::string& text) { return "'" + text + "'"; }

std::string content(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream all;
  all << in.rdbuf();
  return all.str();
}

struct Files {
  TempFolder folder;
  std::string in = folder / "case.safetensors", out = folder / "out.safetensors";
  std::string arguments(const Case& c) const {
    return in_quotes(in) + " " + in_quotes(out) + " " + c.arguments + (test_device() == cpu ? "" : " --device cuda");
  }
  explicit Files(const Case& c) { save_safetensors(in, {c.tensors, {{"layer", c.layer}, {"config", c.config}}}); }
};

}  // namespace

Finished layer_check(const std::string& arguments) {
  TempFolder folder;
  const std::string out = folder / "out", err = folder / "err";
  const int status =
      std::system((in_quotes(LAYER_CHECK) + " " + arguments + " >" + in_quotes(out) + " 2>" + in_quotes(err)).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content(out), content(err)};
}

std::map<std::string, Tensor> outputs(const Case& c) {
  const Files files(c);
  const Finished run = layer_check(files.arguments(c));
  INFO(c.layer << " " << c.config << "\n" << run.err);
  REQUIRE(run.status == 0);
  CHECK(run.err.empty());
  const SafeTensors result = load_safetensors(files.out);
  CHECK(result.metadata.at("layer") == c.layer);
  return result.tensors;
}

std::string error_of(const Case& c) {
  const Files files(c);
  const Finished run = layer_check(files.arguments(c));
  INFO(c.layer << " " << c.config << "\n" << run.err);
  CHECK(run.status == 1);
  CHECK(run.out.empty());
  CHECK(std::count(run.err.begin(), run.err.end(), '\n') == 1);
  CHECK(run.err.starts_with("layer_check: "));
  CHECK(files.folder.count() == 1);  // the case
  return run.err;
}

}  // namespace sluice::testing
