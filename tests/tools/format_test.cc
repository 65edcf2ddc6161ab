#include "tools/format.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gradwire::tools {
namespace {

TEST(Format, BytesAreBinaryUnits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(25 << 20), "25.0 MiB");
  EXPECT_EQ(format_bytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes(UINT64_MAX), "16.0 EiB");
}

TEST(Format, DurationsKeepThreeDigits) {
  EXPECT_EQ(format_duration_ns(0), "-");
  EXPECT_EQ(format_duration_ns(std::nan("")), "-");
  EXPECT_EQ(format_duration_ns(12'345), "12.3 us");
  EXPECT_EQ(format_duration_ns(123'456), "123 us");
  EXPECT_EQ(format_duration_ns(1'234'567), "1.23 ms");
  EXPECT_EQ(format_duration_ns(123'456'789), "123.5 ms");
  EXPECT_EQ(format_duration_ns(12'345'678'901), "12.35 s");
}

TEST(Format, AgesHaveTwoUnits) {
  EXPECT_EQ(format_age(4), "4s");
  EXPECT_EQ(format_age(192), "3m 12s");
  EXPECT_EQ(format_age(7500), "2h 05m");
  EXPECT_EQ(format_age(273'600), "3d 04h");
}

TEST(Format, RatioOfNothingIsADash) {
  EXPECT_EQ(format_ratio(100, 0), "-");
  EXPECT_EQ(format_ratio(100, 8), "12.5x");
}

TEST(Format, NumbersThatAreNoneSaySo) {
  EXPECT_EQ(format_fixed(1.23456, 2), "1.23");
  EXPECT_EQ(format_fixed(std::nan(""), 2), "nan");
  EXPECT_EQ(format_fixed(INFINITY, 2), "inf");
}

TEST(Format, MomentsAreInUtc) {
  EXPECT_EQ(format_unix_time(0), "1970-01-01 00:00:00 UTC");
  EXPECT_EQ(format_unix_time(1'896'080'700), "2030-01-31 09:05:00 UTC");
}

TEST(Format, SizesAreReadInTheUnitsOfTheConfiguration) {
  EXPECT_EQ(*parse_bytes("4KiB"), 4096u);
  EXPECT_EQ(*parse_bytes("1.5MiB"), 1'572'864u);
  EXPECT_EQ(*parse_bytes("1TiB"), 1'099'511'627'776u);
  EXPECT_EQ(*parse_bytes("1000"), 1000u);
  EXPECT_EQ(*parse_bytes("8B"), 8u);
}

TEST(Format, SizesThatMakeNoSenseAreRefused) {
  for (const char* text :
       {"", "KiB", "-1", "0", "1.5", "4 KiB", "4XiB", "4kib", "1e30", "nan", "inf", "2000GiB"}) {
    EXPECT_FALSE(parse_bytes(text).ok()) << text;
  }
}

TEST(Format, AUnitThatCouldMeanTwoThingsIsRefusedWithTheOneToWrite) {
  for (const char* text : {"4KB", "4kB", "4K", "4k"}) {
    EXPECT_NE(parse_bytes(text).status().message().find("write KiB"), std::string::npos) << text;
  }
  EXPECT_NE(parse_bytes("25MB").status().message().find("write MiB"), std::string::npos);
  EXPECT_NE(parse_bytes("1XB").status().message().find("'XB' is not known"), std::string::npos);
}

TEST(Format, TextFromElsewhereIsMadeHarmless) {
  EXPECT_EQ(printable("gr\xc3\xbcn"), "gr\xc3\xbcn");
  EXPECT_EQ(printable("a\x01\nb\xff"), "a??b?");
  EXPECT_EQ(printable("a\xc2\x9b"
                      "2Jb\xe2\x80\xae"),
            "a?2Jb?");
}

TEST(Table, AlignsColumnsByCharactersAndEndsWithoutBlanks) {
  Table table({{"NAME"}, {"N", Table::Align::kRight}, {"LAST"}});
  table.add_row({"gr\xc3\xbcn", "7", ""});
  table.add_row({"a", "123", "x"});
  EXPECT_EQ(table.render("  "),
            "  NAME    N  LAST\n"
            "  gr\xc3\xbcn    7\n"
            "  a     123  x\n");
}

}  // namespace
}  // namespace gradwire::tools
