# cmake -DROOT=folder -DFILES=a;b -DOUTPUT=file.cpp -P EmbedSources.cmake
# Writes the device sources as string literals, so that the binary compiles kernels anywhere.
set(text "#include \"runtime/kernel_store/sources.h\"\n\nnamespace flashlab::cuda {\n\n")
string(APPEND text "const EmbeddedSource kEmbeddedSources[] = {\n")
foreach(file IN LISTS FILES)
  file(READ ${ROOT}/${file} content)
  string(APPEND text "    {\"${file}\", R\"~~~~(${content})~~~~\"},\n")
endforeach()
string(APPEND text "    {nullptr, nullptr}};\n\n}  // namespace flashlab::cuda\n")
file(WRITE ${OUTPUT} "${text}")
