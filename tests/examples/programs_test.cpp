// Programs of examples/ by their command lines: what they refuse, and a conversation.
#include "support/approx.h"
#include "support/catch.h"
#include "support/folders.h"
#include "support/temp_folder.h"

#include <sluice/core/text/file.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/ops/shape/create.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include <sys/wait.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

struct Finished {
  int status;
  std::string out;  // of stdout and stderr
};

void put(const std::string& path, const std::string& text) {
  write_file_atomically(path, [&](FileWriter& w) { w.write(text); });
}

/// A program in a folder of its own, with these lines on stdin.
Finished run(const std::string& program, const std::string& arguments, const std::string& lines = "") {
  TempFolder folder;
  put(folder / "in", lines);
  const std::string command =
      str("cd '", folder / "", "' && '", EXAMPLES, "/", program, "' ", arguments, " <in >out 2>&1");
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(folder / "out")};
}

/// The number behind the first `words` in a text.
int64_t number_after(const std::string& text, const std::string& words) {
  INFO(text);
  const std::size_t at = text.find(words);
  REQUIRE(at != std::string::npos);
  return std::stoll(text.substr(at + words.size()));
}

const std::string chat_data = source_folder() + "/examples/data/chat";

}  // namespace

TEST_CASE("examples: options that lead nowhere are refused before anything is trained") {
  const std::string text = "--text '" + source_folder() + "/README.md' --steps 1 ";
  const auto refused = [](const std::string& program, const std::string& arguments, const std::string& why) {
    const Finished f = run(program, arguments);
    CHECK(f.status == 1);
    CHECK_THAT(f.out, Contains(program + ": " + why));
  };
  refused("gated_lm", text + "--hidden 32", "hidden must be above dim / 3 — got hidden 32, dim 96");
  refused("attention_sink", text + "--short-steps 1 --hidden 32",
          "hidden must be above dim / 3 — got hidden 32, dim 96");
  refused("hybrid_lm", "--smoke --only delta,sofmax",
          "--only names \"sofmax\", which is no model — did you mean \"softmax\"?");
  refused("gated_lm", text + "--smoke=no", "option \"smoke\" must be of type bool");
  refused("gated_lm", text + "--smoke=false --hidden 32", "hidden must be above dim / 3 — got hidden 32, dim 96");
  refused("chat", "--model '" + chat_data + "' --sequences 2", "--sequences above 1 needs --prompt");
}

TEST_CASE("examples: output that nobody takes is an error") {
  if (!std::filesystem::exists("/dev/full")) return;
  for (const std::string arguments : {"--smoke", "--help"}) {
    TempFolder folder;
    const int status =
        std::system(str("'", EXAMPLES, "/chat' ", arguments, " >/dev/full 2>'", folder / "errors", "'").c_str());
    CHECK(WEXITSTATUS(status) == 1);
    CHECK(read_file(folder / "errors") == "error: cannot write what the program prints\n");
  }
}

TEST_CASE("examples: files of another kind are errors that name what is missing") {
  TempFolder folder;
  const auto refused = [&](const std::string& program, const std::string& arguments, const std::string& text,
                           const std::string& why) {
    put(folder / "file", text);
    const Finished f = run(program, arguments + " '" + (folder / "file") + "'" + (program[0] == '0' ? " y" : ""));
    INFO(program << ": " << f.out);
    CHECK(f.status == 1);
    CHECK_THAT(f.out, Contains("error: ") && Contains("file'") && Contains(why));
  };
  refused("long_rrna", "--data", "a text\n>\n>a\t;\n", "has 0 phyla of 20 genes or more");
  refused("gloss_classifier", "--data", "a text\n", "has no line \"offset class");
  refused("gloss_classifier", "--data", "00001740 0x n | a thing\n", "line 1: need a class from 03 to 28 — got \"0x\"");
  refused("gloss_classifier", "--data", "short | a thing\n", "line 1: need a class from 03 to 28");
  std::string same, alone;
  for (int i = 0; i < 20; ++i) same += str(i, ",1\n"), alone += str(i, "\n");
  refused("08_regression_csv", "", "x,y\n1,2\n", "need 10 rows, a column beside \"y\", and a target that varies");
  refused("08_regression_csv", "", "x,y\n" + same, "need 10 rows");
  refused("08_regression_csv", "", "y\n" + alone, "need 10 rows");
}

TEST_CASE("examples: gau_lm goes on from a checkpoint without notes, not from one whose time is none") {
  TempFolder folder;
  const std::string always = "--smoke --out '" + (folder / "lm") + "' --steps ";
  REQUIRE(run("gau_lm", always + "2").status == 0);
  const std::string path = folder / "lm/checkpoint.safetensors";
  const auto resumed = [&](const char* milliseconds) {
    SafeTensors file = load_safetensors(path);
    std::erase_if(file.metadata, [](const auto& note) { return note.first.starts_with("config."); });
    if (milliseconds) file.metadata["config.elapsed_ms"] = milliseconds;
    save_safetensors(path, file);
    return run("gau_lm", always + "3").out;
  };
  for (const char* time : {"nan", "inf", "-1", "soon"})
    CHECK_THAT(resumed(time), Contains(str("safetensors': elapsed_ms must be a time — got \"", time, "\"")));
  CHECK_THAT(resumed(nullptr), Contains("at step 2") && Contains("after 3 steps"));
  CHECK_THAT(run("gau_lm", always + "2 --temperature -1").out, Contains("temperature must be at least 0"));
}

TEST_CASE("examples: 09_language_model writes a text without a full stop, too") {
  TempFolder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) text += "abc def ";
  put(folder / "file", text);
  const Finished f = run("09_language_model", "'" + (folder / "file") + "' 20");
  CHECK(f.status == 0);
  int lines = 0;
  for (std::size_t at = 0; (at = f.out.find("\nevery ", at)) != std::string::npos; ++at) ++lines;
  CHECK(lines == 3);
}

TEST_CASE("examples: hybrid_lm --only runs the models that it names") {
  const Finished f = run("hybrid_lm", "--smoke --only delta,GAU");
  CHECK(f.status == 0);
  CHECK_THAT(f.out, Contains(" GAU ") && Contains(" delta ") && !Contains(" softmax ") && !Contains(" hybrid "));
}

TEST_CASE("examples: a conversation reads all that was said, and ends turns where its tokens do") {
  // Without weights all logits are equal, and the likeliest token is the first.
  TempFolder folder;
  SafeTensors weights = load_safetensors(chat_data + "/model.safetensors");
  for (auto& [name, x] : weights.tensors) x = zeros_like(x);
  save_safetensors(folder / "model.safetensors", weights);
  put(folder / "config.json", read_file(chat_data + "/config.json"));
  put(folder / "tokenizer.json", read_file(chat_data + "/tokenizer.json"));
  const std::string always = "--model '" + (folder / "") + "' --tokens 3 --temperature 0 ";

  // The last token of an answer that --tokens cuts is read before the next turn.
  const int64_t one = number_after(run("chat", always + "--plain", "the gate\n").out, "; prompt ");
  CHECK(one > 0);
  CHECK(number_after(run("chat", always + "--plain", "the gate\nthe gate\n").out, "; prompt ") == 2 * one + 1);

  const auto stop = [&](const std::string& text) {
    put(folder / "generation_config.json", text);
    return run("chat", always + "--prompt gate").out;
  };
  CHECK_THAT(stop("{"), Contains("error: chat: '") && Contains("/generation_config.json': json: "));
  for (const char* other : {"\"2\"", "[1, 2.5]", "true"})
    CHECK_THAT(stop(str("{\"eos_token_id\": ", other, "}")),
               Contains("generation_config.json': eos_token_id must be a whole number, or a list of them — got "));
  CHECK_THAT(stop("{\"eos_token_id\": null}"), !Contains("error"));
  std::filesystem::remove(folder / "generation_config.json");

  // The first token ends turns now, which config.json does not say.
  std::string names = read_file(chat_data + "/tokenizer.json");
  const auto rename = [&](const std::string& from, const std::string& to) {
    for (std::size_t at = names.find(from); at != std::string::npos; at = names.find(from, at + to.size()))
      names.replace(at, from.size(), to);
  };
  rename("<|endoftext|>", "<|neither|>"), rename("<|im_end|>", "<|endoftext|>"), rename("<|neither|>", "<|im_end|>");
  put(folder / "tokenizer.json", names);
  CHECK(number_after(run("chat", always + "--prompt gate").out, "; answer ") == 1);
  CHECK(number_after(run("chat", always + "--prompt gate --plain").out, "; answer ") == 3);
}

TEST_CASE("examples: finetune learns, and what it writes begins where the training ended") {
  TempFolder folder;
  const std::string tuned = folder / "tuned";
  const SafeTensors before = load_safetensors(chat_data + "/model.safetensors");
  for (const auto& [rank, most] : {std::pair{0, 2000}, std::pair{2, 8100}}) {
    const auto millibits = [&](const std::string& arguments, const std::string& words) {
      const Finished f = run("finetune", str("--smoke --rank ", rank, arguments));
      INFO(f.out);
      REQUIRE(f.status == 0);
      const std::size_t at = f.out.find(words);
      REQUIRE(at != std::string::npos);
      return std::lround(1000 * std::stod(f.out.substr(at + words.size())));
    };
    const auto after = millibits(" --out '" + tuned + "'", " before, ");
    CHECK(after < most);  // of 300 tokens, all equally likely: 8,229
    const SafeTensors written = load_safetensors(tuned + "/model.safetensors");
    REQUIRE(written.tensors.size() == before.tensors.size());
    for (const auto& [name, x] : before.tensors) {
      INFO(name);
      const bool map = x.rank() == 2 && name.starts_with("model.layers.");
      CHECK((max_abs_diff(to(x, f32), written.tensors.at(name)) > 0) == (rank == 0 || map));
    }
    CHECK(millibits(" --steps 1 --model '" + tuned + "'", "held out: ") == after);
  }
}

TEST_CASE("examples: finetune refuses before it trains") {
  TempFolder folder;
  put(folder / "text", "the gate opens");
  const auto refused = [](const std::string& arguments, const std::string& why) {
    const Finished f = run("finetune", arguments);
    CHECK(f.status == 1);
    CHECK_THAT(f.out, Contains(why) && !Contains("step 1"));
  };
  refused("", "--model FOLDER is needed");
  refused("--model '" + chat_data + "'", "--text FILE is needed");
  refused("--model '" + chat_data + "' --text '" + (folder / "text") + "'", "must be longer than the context — got ");
  refused("--smoke --out '" + chat_data + "'", "need another folder");
}
