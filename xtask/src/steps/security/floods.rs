//! Connections that begin a handshake and do not end it: many at once, and byte by byte.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};

use super::{Extent, HANDSHAKE_MS, TlsTarget, http};

/// Start of a client's first record, of which nothing more comes.
const HALF_HELLO: [u8; 11] = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03];

/// Longest handshake of another client meanwhile.
const HONEST_MAX: Duration = Duration::from_secs(2);

/// Most memory that the connections may cost the node, each.
const BYTES_EACH_MAX: u64 = 48 * 1024;

/// Pause between the bytes of a slow handshake.
const BYTE_INTERVAL: Duration = Duration::from_millis(100);

/// Runs the checks, and returns their number.
pub(super) fn run(target: &TlsTarget, authority: &Path, extent: Extent) -> anyhow::Result<usize> {
    let (half_open, slow) = if extent == Extent::Full { (3_000, 200) } else { (400, 20) };
    handshake(target, authority).context("before the floods")?;
    flood(target, authority, half_open)?;
    slowly(target, authority, slow)?;
    Ok(2)
}

/// Opens many connections that stay in their handshake: one address keeps no other out, they cost little, and end in time.
fn flood(target: &TlsTarget, authority: &Path, count: usize) -> anyhow::Result<()> {
    let before = memory(target)?;
    let mut open = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(&target.node.client).context("the node accepts")?;
        // A refused one may be closed already.
        drop(stream.write_all(&HALF_HELLO));
        open.push(stream);
    }
    let honest = handshake(target, authority).context("while an address floods")?;
    let growth = memory(target)?.saturating_sub(before);
    ensure!(
        growth <= (count as u64) * BYTES_EACH_MAX + (16 << 20),
        "{count} half-open connections cost {} MiB",
        growth >> 20
    );
    ends_in_time(open)?;
    println!("{count} half-open connections: {} MiB, another client after {honest:?}", growth >> 20);
    Ok(())
}

/// Sends the start of handshakes byte by byte: they end at the deadline of the whole.
fn slowly(target: &TlsTarget, authority: &Path, count: usize) -> anyhow::Result<()> {
    let connect = || TcpStream::connect(&target.node.client).context("the node accepts");
    let mut open = (0..count).map(|_| connect()).collect::<anyhow::Result<Vec<_>>>()?;
    let began = Instant::now();
    let whole = HALF_HELLO.into_iter().chain([0; 508]);
    for byte in whole {
        open.retain_mut(|stream| stream.write_all(&[byte]).is_ok());
        if open.is_empty() {
            break;
        }
        ensure!(
            began.elapsed() < Duration::from_millis(HANDSHAKE_MS) + Duration::from_secs(10),
            "{} slow handshakes are open after {:?}",
            open.len(),
            began.elapsed()
        );
        thread::sleep(BYTE_INTERVAL);
    }
    ensure!(open.is_empty(), "slow handshakes did not end");
    handshake(target, authority).context("after slow handshakes")?;
    println!("{count} handshakes byte by byte: closed after {:?}", began.elapsed());
    Ok(())
}

/// Waits until the node has closed all connections, soon after the time for a handshake.
fn ends_in_time(open: Vec<TcpStream>) -> anyhow::Result<()> {
    let until = Instant::now() + Duration::from_millis(HANDSHAKE_MS) + Duration::from_secs(5);
    for mut stream in open {
        let mut bytes = [0; 512];
        loop {
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            stream.set_read_timeout(Some(left))?;
            match stream.read(&mut bytes) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {
                    bail!("a half-open connection outlives its deadline")
                }
                Err(_) => break,
            }
        }
    }
    Ok(())
}

/// Completes a handshake from another address of this machine, and returns how long it took.
fn handshake(target: &TlsTarget, authority: &Path) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let mut command = Command::new("openssl");
    command.args(["s_client", "-bind", "127.0.0.77:0", "-verify_return_error", "-servername", "localhost"]);
    command.args(["-connect", &target.node.client]).arg("-CAfile").arg(authority);
    let output = command.stdin(Stdio::null()).output().context("starting openssl s_client")?;
    let took = began.elapsed();
    let printed = [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned()).concat();
    ensure!(printed.contains("Verify return code: 0 (ok)"), "no handshake:\n{printed}");
    ensure!(took <= HONEST_MAX, "a handshake took {took:?}");
    Ok(took)
}

fn memory(target: &TlsTarget) -> anyhow::Result<u64> {
    http::memory(target.node.pid(), &target.monitor)
}
