#include "tests/config/support.h"

namespace gradwire::config {
namespace {

class Errors : public ConfigTest {};

TEST_F(Errors, NameFileLineColumnValueLimitsAndAnExample) {
  EXPECT_EQ(error("clocks:\n  peer_timeout: 5\n"),
            "FILE:2:17: clocks.peer_timeout: '5' has no unit (us, ms, s, min, h or d); allowed 100ms to "
            "10min; write "
            "for example 2s");
  EXPECT_EQ(
      error("clocks:\n  peer_timeout: 5ms\n"),
      "FILE:2:17: clocks.peer_timeout: '5ms' is too small; allowed 100ms to 10min; write for example 2s");
  EXPECT_EQ(
      error("clocks: {peer_timeout: 2h}"),
      "FILE:1:24: clocks.peer_timeout: '2h' is too large; allowed 100ms to 10min; write for example 2s");
  EXPECT_EQ(error("clocks: {peer_timeout: 2sec}"),
            "FILE:1:24: clocks.peer_timeout: '2sec' has the unknown unit 'sec' (us, ms, s, min, h or d); "
            "allowed 100ms "
            "to 10min; write for example 2s");
  EXPECT_EQ(error("transport: {segment: 128KB}"),
            "FILE:1:22: transport.segment: '128KB' has the unknown unit 'KB' (B, KiB, MiB, GiB or TiB); "
            "allowed 72KiB "
            "to 1MiB; write for example 128KiB");
  EXPECT_EQ(error("compression: {codec: lacoo}"),
            "FILE:1:22: compression.codec: 'lacoo' is not known, did you mean 'laco'?; allowed none, fp16, "
            "bf16, l8, "
            "int8, int4, onebit, sign, lads, laco, topk or dropping; "
            "write for example laco");
  EXPECT_EQ(
      error("compression: {density: 2}"),
      "FILE:1:24: compression.density: '2' is too large; allowed 0.000001 to 1; write for example 0.01");
  EXPECT_EQ(error("peers: {port: 65536}"),
            "FILE:1:15: peers.port: '65536' is too large; allowed 0 to 65535; write for example 7470");
  EXPECT_EQ(
      error("peers: {listen: localhost}"),
      "FILE:1:17: peers.listen: 'localhost' is not an IPv4 or IPv6 address; allowed an IPv4 or IPv6 address; "
      "write for example 10.0.0.3");
  EXPECT_EQ(error("node: {socket: run.sock}"),
            "FILE:1:16: node.socket: 'run.sock' is not an absolute path; allowed an absolute path of at most "
            "107 bytes; "
            "write for example /run/gradwire/gradwired.sock");
  EXPECT_EQ(error("node: {socket_mode: 0860}"),
            "FILE:1:21: node.socket_mode: '0860' is not an octal number; allowed 0600 to 0777; write for "
            "example 0660");
  EXPECT_EQ(error("engine: {spin: yes}"),
            "FILE:1:16: engine.spin: 'yes' is not a number with a unit; allowed auto, off or 1us to 10ms; "
            "write for "
            "example 50us");
}

TEST_F(Errors, WhatStandsInForNoOtherCodecIsRefused) {
  EXPECT_EQ(error("plan: {codecs: \"l8,sign\"}"),
            "FILE:1:16: plan.codecs: 'l8,sign' holds 'sign', which counts votes and stands in for no other "
            "codec: ask for it in compression.codec; allowed \"\" or of fp16, bf16, l8, int8, int4, onebit, "
            "lads, laco, topk or dropping, separated by commas; write for example l8,fp16");
  EXPECT_NE(error("plan: {codecs: none}").find("holds 'none': whether buckets go exactly is plan.bypass's"),
            std::string::npos);
  EXPECT_EQ(error("plan: {codecs: \"l8,fp16\"}"), "");
}

TEST_F(Errors, CommasWithoutACodecAreRefusedWhereverTheyAre) {
  for (const std::string list : {",", "l8,", ",l8", "l8,,fp16"}) {
    EXPECT_EQ(
        error("plan: {codecs: \"" + list + "\"}"),
        "FILE:1:16: plan.codecs: '" + list +
            "' has a comma without a codec before or behind it; allowed \"\" or of fp16, bf16, l8, int8, "
            "int4, onebit, lads, laco, topk or dropping, separated by commas; write for example l8,fp16");
  }
  EXPECT_EQ(error("plan: {codecs: \"\"}"), "");
}

TEST_F(Errors, NumbersThatLookOctalAreRefused) {
  EXPECT_EQ(
      error("peers: {port: 010}"),
      "FILE:1:15: peers.port: '010' starts with 0, which YAML takes for an octal number: write it without; "
      "allowed 0 to 65535; write for example 7470");
  EXPECT_NE(error("clocks: {peer_timeout: 02s}"), "");
  EXPECT_NE(error("transport: {segment: 0128KiB}"), "");
  EXPECT_NE(error("compression: {density: 00.1}"), "");
  EXPECT_NE(error("engine: {workers: 04}"), "");
  EXPECT_EQ(error("peers: {port: 0}\ncompression: {density: 0.01}\nnode: {socket_mode: 0600}\n"
                  "clocks: {drain_timeout: 0s}"),
            "");
}

TEST_F(Errors, UnknownNamesGetASuggestion) {
  EXPECT_EQ(error("clock:\n  peer_timeout: 2s\n"),
            "FILE:1:1: 'clock': unknown section; did you mean 'clocks'?");
  EXPECT_EQ(error("clocks:\n  peer_timeuot: 2s\n"),
            "FILE:2:3: clocks.'peer_timeuot': unknown option; did you mean 'peer_timeout'?");
  EXPECT_EQ(error("engine: {peer_timeout: 2s}"),
            "FILE:1:10: engine.'peer_timeout': unknown option; did you mean 'clocks.peer_timeout'?");
  EXPECT_EQ(error("peer_timeout: 2s"),
            "FILE:1:1: 'peer_timeout': unknown section; did you mean 'clocks.peer_timeout'?");
  EXPECT_EQ(
      error("clocks.peer_timeout: 2s"),
      "FILE:1:1: 'clocks.peer_timeout': options stand below their section; write 'clocks:' and below it '  "
      "peer_timeout: ...'");
  EXPECT_EQ(error("log: {zzz: 1}"), "FILE:1:7: log.'zzz': unknown option; options of log are level");
  EXPECT_EQ(error("compression: {rules: [{match: x, codek: l8}]}"),
            "FILE:1:34: compression.rules[0].'codek': unknown setting; did you mean 'codec'?");
  EXPECT_EQ(error("", {"clocks.peer_timeot=2s"}),
            "command line: 'clocks.peer_timeot': unknown option; did you mean 'clocks.peer_timeout'?");
  EXPECT_EQ(error("", {"codec=laco"}),
            "command line: 'codec': unknown option; did you mean 'compression.codec'?");
}

TEST_F(Errors, DuplicateKeysNameBothLines) {
  EXPECT_EQ(error("clocks:\n  peer_timeout: 2s\n  peer_timeout: 3s\n"),
            "FILE:3:3: clocks.peer_timeout: given twice, first in line 2; remove one");
  EXPECT_EQ(error("log:\nclocks:\nlog:\n"), "FILE:3:1: log: given twice, first in line 1; remove one");
  EXPECT_EQ(error("compression:\n  rules:\n    - match: a\n      match: b\n"),
            "FILE:4:7: compression.rules[0].match: given twice, first in line 3; remove one");
}

TEST_F(Errors, WrongShapesAreNamed) {
  EXPECT_EQ(error("- a\n"),
            "FILE:1:1: a list where sections are expected; write for example 'clocks: {peer_timeout: 2s}'");
  EXPECT_EQ(error("hello"),
            "FILE:1:1: a value where sections are expected; write for example 'clocks: {peer_timeout: 2s}'");
  EXPECT_EQ(error("clocks: 5"),
            "FILE:1:1: clocks: a value where options are expected; write for example 'clocks: {peer_timeout: "
            "...}'");
  EXPECT_EQ(
      error("clocks: [5]"),
      "FILE:1:1: clocks: a list where options are expected; write for example 'clocks: {peer_timeout: ...}'");
  EXPECT_EQ(error("clocks: {peer_timeout: [2s]}"),
            "FILE:1:24: clocks.peer_timeout: a list where one value is expected; write for example 2s");
  EXPECT_EQ(error("clocks: {peer_timeout: {a: 2s}}"),
            "FILE:1:24: clocks.peer_timeout: a map where one value is expected; write for example 2s");
  EXPECT_EQ(error("clocks:\n  peer_timeout:\n"),
            "FILE:2:3: clocks.peer_timeout: has no value; write for example 2s, or remove the line");
  EXPECT_EQ(error("transport: {ucx: 5}"),
            "FILE:1:18: transport.ucx: is not a map; write for example {TCP_CM_REUSEADDR: y}");
  EXPECT_EQ(
      error("compression: {rules: {match: a}}"),
      "FILE:1:22: compression.rules: is not a list; write for example [{match: \"*.bias\", codec: none}]");
  EXPECT_EQ(
      error("compression: {rules: [a]}"),
      "FILE:1:23: compression.rules[0]: is not a map; write for example {match: \"*.bias\", codec: none}");
  EXPECT_EQ(error("compression: {rules: [{codec: l8}]}"),
            "FILE:1:23: compression.rules[0]: has no match; write for example match: \"*.bias\"");
}

TEST_F(Errors, UcxSettingsAreChecked) {
  EXPECT_EQ(error("transport: {ucx: {UCX_RNDV_THRESH: 1}}"),
            "FILE:1:19: transport.ucx: the name 'UCX_RNDV_THRESH' has the prefix UCX_; write 'RNDV_THRESH'");
  EXPECT_EQ(error("transport: {ucx: {TLS: tcp}}"),
            "FILE:1:19: transport.ucx: 'TLS' has its own option; use transport.tls");
  EXPECT_EQ(error("transport: {ucx: {rndv: 1}}"),
            "FILE:1:19: transport.ucx: 'rndv' is not the name of a UCX setting; allowed are 1 to 128 of A-Z, "
            "0-9 and _; "
            "write for example TCP_CM_REUSEADDR");
}

TEST_F(Errors, AreAllReportedInOneMessage) {
  EXPECT_EQ(
      error("clocks:\n  peer_timeout: 5\n  bogus: 1\nlog: {level: loud}\n",
            {"nonsense", "engine.workers=-1"}),
      "FILE:2:17: clocks.peer_timeout: '5' has no unit (us, ms, s, min, h or d); allowed 100ms to 10min; "
      "write "
      "for example 2s\n"
      "FILE:3:3: clocks.'bogus': unknown option; options of clocks are peer_timeout, operation_timeout, "
      "stall_warning, residual_ttl or drain_timeout\n"
      "FILE:4:14: log.level: 'loud' is not known; allowed trace, debug, info, warn or error; write for "
      "example "
      "info\n"
      "command line: 'nonsense' is not NAME=VALUE; write for example clocks.peer_timeout=2s\n"
      "command line: engine.workers: '-1' is not a whole number; allowed auto or 0 to 256; write for example "
      "4");
}

TEST_F(Errors, OptionsThatContradictEachOtherAreReportedWhereTheyStand) {
  EXPECT_EQ(error("clocks:\n  operation_timeout: 1s\n"),
            "FILE:2:3: clocks.operation_timeout: '1s' is shorter than clocks.peer_timeout; allowed 2s to 1d; "
            "write for "
            "example 2s");
  EXPECT_EQ(error("clocks:\n  peer_timeout: 10min\n"),
            "FILE:2:3: clocks.operation_timeout: '5min' is shorter than clocks.peer_timeout; allowed 10min "
            "to 1d; write "
            "for example 10min");
  EXPECT_EQ(error("", {"clocks.operation_timeout=1s"}),
            "command line: clocks.operation_timeout: '1s' is shorter than clocks.peer_timeout; allowed 2s to "
            "1d; write "
            "for example 2s");
}

}  // namespace
}  // namespace gradwire::config
