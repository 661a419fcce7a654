//! Table of calls of the server's script with their answers, in `tests/data/grants.json`. A test of the script reads the
//! same file, so that the script and [`GrantLog`] agree byte by byte.
//!
//! Each line has the value before as hex, the clock and the arguments, the answer, and the value after. Times are in
//! microseconds. `TIDEGATE_UPDATE_DOCS=1` writes the file.

use std::{fmt::Write as _, fs, path::PathBuf};
use tidegate_protocol::machine::permit::{Grant, GrantLog, GrantRequest};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn line(name: &str, value: &[u8], request: &GrantRequest) -> (String, Vec<u8>) {
    let mut log = GrantLog::decode(value);
    let Grant { granted, wait_us, used } = log.grant(request);
    let GrantRequest { now_us, want, charge, limit, window_us, life_us } = request;
    let after = log.encode();
    let text = format!(
        r#"{{"name":"{name}","value":"{}","now":{now_us},"want":{want},"charge":{charge},"limit":{limit},"window":{window_us},"life":{life_us},"granted":{granted},"wait":{wait_us},"used":{used},"after":"{}"}}"#,
        hex(value),
        hex(&after),
    );
    (text, after)
}

const NOW: u64 = 1_795_921_380_123_456;

const EXACT: GrantRequest =
    GrantRequest { now_us: NOW, want: 1, charge: 0, limit: 3, window_us: 1_000_000, life_us: 50_000 };
const MERGED: GrantRequest = GrantRequest { want: 40, limit: 100, ..EXACT };

/// Steps of a sequence: each call gets the value that the call before left.
fn sequence(name: &str, calls: &[GrantRequest], lines: &mut Vec<String>) {
    let mut value = Vec::new();
    for (at, request) in calls.iter().enumerate() {
        let (text, after) = line(&format!("{name} {at}"), &value, request);
        lines.push(text);
        value = after;
    }
}

fn random_sequence(seed: u64, lines: &mut Vec<String>) {
    let mut random = super::cluster::Random(seed);
    let mut request = match seed % 3 {
        0 => GrantRequest { limit: 16, ..EXACT },
        1 => MERGED,
        _ => GrantRequest { limit: 100_000, window_us: 86_400_000_000, life_us: 2_700_000_000, ..EXACT },
    };
    let step = request.window_us / 30;
    let mut calls = Vec::new();
    for _ in 0..if seed == 1 { 70 } else { 24 } {
        request.now_us += random.below(step);
        if random.below(12) == 0 {
            request.now_us -= random.below(step * 4);
        }
        request.want = random.below(u64::from(request.limit) / 3) as u32;
        request.charge =
            if random.below(10) == 0 { random.below(u64::from(request.limit) / 6) as u32 } else { 0 };
        calls.push(request);
    }
    sequence(&format!("random {seed}"), &calls, lines);
}

fn table() -> String {
    let mut lines = Vec::new();
    let at =
        |us: i64, request: GrantRequest| GrantRequest { now_us: NOW.saturating_add_signed(us), ..request };
    sequence(
        "exact",
        &[EXACT, at(0, EXACT), at(10, EXACT), at(20, EXACT), at(1_050_000, EXACT), at(1_050_001, EXACT)],
        &mut lines,
    );
    sequence("nothing wanted", &[GrantRequest { want: 0, ..EXACT }], &mut lines);
    sequence(
        "part",
        &[GrantRequest { want: 5, ..EXACT }, GrantRequest { want: 5, ..at(1, EXACT) }],
        &mut lines,
    );
    sequence(
        "charge",
        &[GrantRequest { charge: 7, ..EXACT }, at(5, EXACT), at(1_050_001, EXACT)],
        &mut lines,
    );
    sequence(
        "merged",
        &[MERGED, at(31_818, MERGED), at(31_819, MERGED), at(70_000, MERGED), at(1_081_819, MERGED)],
        &mut lines,
    );
    sequence(
        "clock set back",
        &[
            MERGED,
            at(500_000, MERGED),
            at(-9_000_000, MERGED),
            at(-8_000_000, MERGED),
            at(-7_949_999, MERGED),
        ],
        &mut lines,
    );
    sequence("clock set forward", &[MERGED, at(90_000_000, MERGED)], &mut lines);
    let saturated = GrantRequest { want: u32::MAX, charge: u32::MAX, limit: u32::MAX, ..EXACT };
    sequence("saturated", &[saturated, saturated, at(1_050_001, saturated)], &mut lines);
    // The largest limit that is exact, and the smallest one that is not.
    for limit in [16, 17] {
        let one = GrantRequest { limit, ..EXACT };
        let calls = [one, at(9, one), at(20_000, one), at(40_000, one), at(1_050_001, one)];
        sequence(&format!("limit {limit}"), &calls, &mut lines);
    }
    // An exact log with more charges than runs.
    let charges: Vec<_> = (0..40).map(|n| GrantRequest { charge: 1, want: 0, ..at(n * n, EXACT) }).collect();
    sequence("runs merged", &charges, &mut lines);
    for (name, value) in
        [("other version", vec![2; 20]), ("other length", vec![1; 21]), ("too long", vec![1; 8 + 35 * 12])]
    {
        lines.push(line(name, &value, &EXACT).0);
    }
    (0..6).for_each(|seed| random_sequence(seed, &mut lines));
    format!("[\n{}\n]\n", lines.join(",\n"))
}

#[test]
fn grant_cases_are_those_of_the_file() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/grants.json");
    let table = table();
    if std::env::var_os("TIDEGATE_UPDATE_DOCS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &table).unwrap();
    }
    assert!(fs::read_to_string(&path).unwrap() == table, "grants.json differs; see its test");
    let lines: Vec<serde_json::Value> = serde_json::from_str(&table).unwrap();
    assert!(lines.len() > 200);
}

#[test]
fn grant_value_has_its_form() {
    let mut log = GrantLog::default();
    log.grant(&GrantRequest { now_us: 0x01_0203_0405_0607, want: 0x0a0b, limit: 100_000, ..MERGED });
    assert_eq!(hex(&log.encode()), "0107060504030201070605040302010".to_owned() + "00b0a0000");
    assert_eq!(log.encode().len(), 20);
}
