//! Clients that begin a request and send the rest byte by byte: they end at the deadline of the whole, and others get in.

use std::{
    io::Write as _,
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};

use super::{Extent, http, target::TargetNode};

/// Time for the head of a request, for its body, and for each step of a client's handshake: the node's defaults.
const DEADLINE: Duration = Duration::from_secs(5);

/// Time after the deadline for the end of all connections.
const TOLERANCE: Duration = Duration::from_secs(4);

/// Pause between the bytes of a connection.
const BYTE_INTERVAL: Duration = Duration::from_millis(100);

/// Bytes of each connection between two checks of other clients.
const BYTES_PER_CHECK: usize = 8;

/// Most memory that the connections may cost the node, each.
const BYTES_EACH_MAX: u64 = 48 * 1024;

/// Head of a masked text frame of 1,000 bytes.
const FRAME_HEAD: [u8; 8] = [0x81, 0xfe, 0x03, 0xe8, 1, 2, 3, 4];

/// Kind of a slow request, and its open connections.
struct SlowKind {
    name: &'static str,
    port: String,
    opening: Vec<u8>,
    open: Vec<TcpStream>,
}

/// Runs the floods at the same time, and returns the number of their kinds.
pub(super) fn run(target: &mut TargetNode, extent: Extent) -> anyhow::Result<usize> {
    let count = if extent == Extent::Full { 500 } else { 60 };
    let mut kinds = kinds(target)?;
    let token = target.node.token("honest")?;
    target.planted.add_token(&token);
    target.serves_others(&token).context("before slow requests")?;
    let before = http::memory(target.node.pid(), &target.admin)?;
    for kind in &mut kinds {
        for _ in 0..count {
            let mut stream = TcpStream::connect(&kind.port).context("the node accepts")?;
            stream.set_nonblocking(true)?;
            // One of too many may be closed already.
            drop(stream.write_all(&kind.opening));
            kind.open.push(stream);
        }
    }
    let (began, mut longest, mut growth) = (Instant::now(), Duration::ZERO, 0);
    for round in 0_usize.. {
        for kind in &mut kinds {
            kind.open.retain_mut(|stream| stream.write_all(b"a").is_ok());
        }
        let open: Vec<_> = kinds.iter().filter(|kind| !kind.open.is_empty()).collect();
        if open.is_empty() {
            break;
        }
        let left: Vec<String> =
            open.iter().map(|kind| format!("{} {}", kind.open.len(), kind.name)).collect();
        let elapsed = began.elapsed();
        ensure!(elapsed < DEADLINE + TOLERANCE, "{} are open after {elapsed:?}", left.join(", "));
        if round.is_multiple_of(BYTES_PER_CHECK) {
            longest = longest.max(target.serves_others(&token).context("during slow requests")?);
            growth = growth.max(http::memory(target.node.pid(), &target.admin)?.saturating_sub(before));
        }
        thread::sleep(BYTE_INTERVAL);
    }
    let all = (kinds.len() * count) as u64;
    ensure!(growth <= all * BYTES_EACH_MAX + (16 << 20), "{all} slow connections cost {} MiB", growth >> 20);
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name).collect();
    println!(
        "{count} each of slow {}: closed after {:?}, {} MiB, another client within {longest:?}",
        names.join(", "),
        began.elapsed(),
        growth >> 20
    );
    Ok(kinds.len())
}

fn kinds(target: &mut TargetNode) -> anyhow::Result<Vec<SlowKind>> {
    let (admin, client) = (target.admin.clone(), target.node.client.clone());
    let planted = &mut target.planted;
    let kind = |name, port: &str, opening: String| SlowKind {
        name,
        port: port.to_owned(),
        opening: opening.into_bytes(),
        open: Vec::new(),
    };
    let head = "HTTP/1.1\r\nHost: localhost\r\n";
    let json = "Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n";
    let upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: tidegate.v1.json\r\n";
    let headers = format!("GET /v1/nodes {head}Cookie: {}", planted.secret("a slow header")?);
    let body = format!("POST /v1/groups {head}{json}{{\"id\":\"{}", planted.secret("a slow body")?);
    let slow_upgrade = format!("GET /v1/ws {head}Cookie: {}", planted.secret("a slow upgrade")?);
    let line = format!("{{\"id\":1,\"hello\":{{\"token\":\"{}", planted.secret("a slow line")?);
    let mut frame = kind("first frames", &client, format!("GET /v1/ws {head}{upgrade}\r\n"));
    frame.opening.extend(FRAME_HEAD);
    Ok(vec![
        kind("headers", &admin, headers),
        kind("bodies", &admin, body),
        kind("upgrades", &client, slow_upgrade),
        kind("first lines", &client, line),
        frame,
    ])
}
