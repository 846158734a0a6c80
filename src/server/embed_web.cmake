# cmake -DOUT=web_files.cc -DROOT=web -DFILES="a;b" -P embed_web.cmake
# Writes a C++ source that holds each file as bytes.
set(arrays "")
set(table "")
set(index 0)
foreach(file ${FILES})
  file(READ ${file} hex HEX)
  string(LENGTH "${hex}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  file(RELATIVE_PATH name ${ROOT} ${file})
  string(APPEND arrays "const unsigned char kFile${index}[] = {${bytes}0};\n")
  string(APPEND table "    {\"${name}\", {reinterpret_cast<const char*>(kFile${index}), ${size}}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE ${OUT} "// Made by embed_web.cmake.
#include \"server/web_files.h\"

#include <vector>

namespace vayu::server {
namespace {
${arrays}
const std::vector<WebFile> kFiles = {
${table}};
}  // namespace

const WebFile* find_web_file(std::string_view name) {
  for (const WebFile& file : kFiles) {
    if (file.name == name) return &file;
  }
  return nullptr;
}

}  // namespace vayu::server
")
