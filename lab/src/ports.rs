//! Ports for the links of the nodes under test.

use anyhow::Context as _;

#[allow(dead_code, unreachable_pub, reason = "tests take ports of other ranges, and are programs")]
#[path = "../../tests/support/port.rs"]
mod port;

/// Ports for links of nodes: below those that the system gives to outgoing connections, so that the port is free when
/// the node comes back.
const PORTS: std::ops::Range<u16> = 21_600..30_000;

/// Reserves a port for as long as this process lives.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    port::find(PORTS, &[0]).context("no port is free")
}
