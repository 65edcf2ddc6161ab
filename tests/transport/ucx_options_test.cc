// What UCX is asked for, and what there is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/transport/transport_harness.h"
#include "transport/ucx/host_addresses.h"

namespace gradwire::transport::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(UcxDevices, AnAddressTellsItsInterface) {
  EXPECT_EQ(device_of_address("127.0.0.1"), "lo");
  EXPECT_EQ(device_of_address("127.5.6.7"), "lo");
  EXPECT_EQ(device_of_address("203.0.113.250"), "");
  EXPECT_EQ(device_of_address("0.0.0.0"), "");
  EXPECT_EQ(device_of_address("localhost"), "");
  for (const std::string& host : ucx_internal::HostAddresses().of_devices("")) {
    EXPECT_FALSE(device_of_address(host).empty()) << host;
  }
}

std::string refusal(UcxOptions options) {
  const auto made = make_ucx_transport(options);
  return made.ok() ? "accepted" : made.status().message();
}

TEST(UcxOptionsTest, UnknownNamesAreRefusedWithWhatThereIs) {
  UcxOptions options = loopback_options();
  options.tls = "tpc,self";
  EXPECT_THAT(refusal(options),
              AllOf(HasSubstr("no transport 'tpc'"), HasSubstr("self"), HasSubstr("did you mean 'tcp'?")));
  options.tls = "";
  EXPECT_THAT(refusal(options), HasSubstr("transport.tls is empty"));
  options = {.tls = "tcp,self", .net_devices = "lo,etth7"};
  EXPECT_THAT(refusal(options),
              AllOf(HasSubstr("no network device 'etth7'"), HasSubstr("available: "), HasSubstr("lo")));
  options = loopback_options();
  options.overrides = {{"TCP_SNDBUFF", "1M"}};
  EXPECT_THAT(refusal(options),
              AllOf(HasSubstr("no setting 'TCP_SNDBUFF'"), HasSubstr("did you mean 'TCP_SNDBUF'?")));
  EXPECT_EQ(::getenv("UCX_TCP_SNDBUFF"), nullptr);
}

TEST(UcxOptionsTest, KnownNamesThatHaveNoHardwareHereAreFineNextToOneThatHas) {
  UcxOptions options = loopback_options();
  options.tls = "rc_v,cuda,tcp,self";
  EXPECT_EQ(refusal(options), "accepted");
  options.tls = "ugni,self";
  EXPECT_THAT(refusal(options), HasSubstr("none of the network transports in 'ugni,self'"));
  options.tls = "self";
  EXPECT_EQ(refusal(options), "accepted") << "a node alone";
}

}  // namespace
}  // namespace gradwire::transport::testing
