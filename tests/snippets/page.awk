# A page of docs/guide as a source file of the tests: awk -v page=docs/guide/NAME.md -f page.awk PAGE
# * A block ```cpp with main() is a program, in a namespace of its own. If a bare block follows before the next block or
#   heading, the program is run and what it prints is compared; else it is compiled.
# * A block that begins with "// NAME.h" is a header, which the page's programs may include.
# * Another block is a declaration or, behind a comment <!-- given: PARAMETERS -->, the body of a function with these
#   parameters. The comment holds up to the next one; "none" ends it.
BEGIN {
  space = page
  gsub(/[^A-Za-z0-9]/, "_", space)
}
/^<!-- given: .* -->$/ && !inside {
  given = substr($0, 13, length($0) - 16)
  if (given == "none") given = ""
  next
}
/^#/ && !inside { program = 0 }
/^```/ && !inside {
  inside = 1
  cpp = $0 == "```cpp"
  output = $0 == "```" && program
  text = header = ""
  main = ours = 0
  line = NR + 1
  next
}
/^```/ {
  inside = 0
  if (cpp) block()
  if (output) test()
  if (!cpp) program = 0
  next
}
inside && cpp {
  if (NR == line && match($0, /^\/\/ [a-z_]+\.h/)) headers[header = substr($0, 4, RLENGTH - 3)] = 1
  if (/^#include </) {
    if (!seen[$0]++) includes = includes $0 "\n"
    $0 = ""
  } else if (/^#include "/) {
    split($0, part, "\"")
    if (!(part[2] in headers)) $0 = "#error \"the page has no header " part[2] "\""
    else $0 = ""
    ours = 1
  } else if (/^#pragma once/) {
    $0 = ""
  } else if (sub(/^int main\(/, "inline auto program(")) {
    main = 1
  }
  text = text $0 "\n"
}
inside && output { text = text $0 "\n" }
function block() {
  number++
  program = 0
  text = "#line " line " \"" page "\"\n" text
  if (header) {
    body = body "namespace headers {\n" text "}\n"
  } else if (main) {
    program = number
    body = body "namespace program_" number " {\n" (ours ? "using namespace headers;\n" : "") text "}\n"
  } else if (given) {
    body = body "namespace fragments {\ninline void fragment_" number "(" given ") {\n" text "}\n}\n"
  } else {
    body = body "namespace fragments {\n" text "}\n"
  }
}
function test() {
  body = body "TEST_CASE(\"snippets: " page " block " program "\") {\n"
  body = body "  CHECK(sluice::testing::printed_by([] { program_" program "::program(); }) ==\nR\"~(" text ")~\");\n}\n"
  program = 0
}
END {
  printf "%s", includes
  print "#include \"snippets/unit.h\"\n\nnamespace " space " {\nnamespace headers {}\nnamespace fragments {\nusing namespace sluice;\n}"
  printf "%s}  // namespace %s\n", body, space
}
