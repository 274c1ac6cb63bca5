"""The native protocol buffer rules under the names that @bazel_tools loads."""

proto_lang_toolchain = native.proto_lang_toolchain
proto_library = native.proto_library
