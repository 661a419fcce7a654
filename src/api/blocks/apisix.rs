//! Access logs of APISIX as evidence of abuse, as its plugin `http-logger` posts them (`docs/apisix.md`).
//!
//! Of an entry only the address, the path and the status are read. The full format of the plugin has the headers of the
//! request, tokens among them, which are neither kept nor logged.

use std::{fmt, net::IpAddr};

use axum::{
    Json,
    body::Bytes,
    extract::State,
    http::{HeaderMap, header::CONTENT_TYPE},
};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::{Value, json};
use tidegate_protocol::Code;

use crate::{
    api::{Api, Problem},
    evidence::{EvidenceKind, GatewayPaths},
};

/// Most entries of a report, which is the default of the plugin.
const ENTRIES_MAX: usize = 1_000;

/// Report of the plugin: the usable entries of one or several, and the number of others.
#[derive(Debug, Default)]
struct AccessReport {
    entries: Vec<AccessEntry>,
    unusable: usize,
}

impl AccessReport {
    /// Reads a report. Entries are decoded one by one, and bytes that are no UTF-8, such as those of a path, are replaced,
    /// so that no request to the gateway hides the others.
    fn parse(body: &[u8]) -> Option<Self> {
        serde_json::from_str(&String::from_utf8_lossy(body)).ok()
    }

    fn add(&mut self, value: Value) {
        match AccessEntry::deserialize(value) {
            Ok(entry) => self.entries.push(entry),
            Err(_) => self.unusable += 1,
        }
    }

    fn len(&self) -> usize {
        self.entries.len() + self.unusable
    }
}

impl<'de> Deserialize<'de> for AccessReport {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReportVisitor)
    }
}

/// Reader of reports, which keeps one entry as JSON at a time.
struct ReportVisitor;

impl<'de> Visitor<'de> for ReportVisitor {
    type Value = AccessReport;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an entry or a list of entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<AccessReport, A::Error> {
        let mut report = AccessReport::default();
        while let Some(entry) = entries.next_element::<Value>()? {
            report.add(entry);
            if report.len() > ENTRIES_MAX {
                // The rest is not needed to refuse the report.
                while entries.next_element::<IgnoredAny>()?.is_some() {}
            }
        }
        Ok(report)
    }

    fn visit_map<A: MapAccess<'de>>(self, entry: A) -> Result<AccessReport, A::Error> {
        let mut report = AccessReport::default();
        report.add(Value::deserialize(MapAccessDeserializer::new(entry))?);
        Ok(report)
    }
}

/// Request to the gateway, in the form of `log_format` or in the full one.
#[derive(Debug, Deserialize)]
struct AccessEntry {
    client_ip: Option<String>,
    /// Number, or text as variables of nginx are.
    status: Option<Value>,
    uri: Option<String>,
    request: Option<FullRequest>,
    response: Option<FullResponse>,
}

/// Part of the full form.
#[derive(Debug, Deserialize)]
struct FullRequest {
    uri: Option<String>,
}

/// Part of the full form.
#[derive(Debug, Deserialize)]
struct FullResponse {
    status: Option<Value>,
}

impl AccessEntry {
    fn address(&self) -> Option<IpAddr> {
        self.client_ip.as_deref().and_then(|text| text.parse().ok())
    }

    fn status(&self) -> Option<u64> {
        let status = self.status.as_ref().or_else(|| self.response.as_ref()?.status.as_ref())?;
        status.as_u64().or_else(|| status.as_str()?.parse().ok())
    }

    /// Returns the path, without the query.
    fn path(&self) -> Option<&str> {
        let uri = self.uri.as_deref().or_else(|| self.request.as_ref()?.uri.as_deref())?;
        Some(uri.split_once('?').map_or(uri, |(path, _)| path))
    }

    /// Returns what the request is evidence of; `None` if it is none.
    fn kind(&self, paths: &GatewayPaths) -> Option<EvidenceKind> {
        paths.kind(self.path().unwrap_or_default(), self.status())
    }
}

/// Takes a report of the gateway.
pub(in crate::api) async fn report(
    State(api): State<Api>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    // No other form may come from a web page without the consent of the node.
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_json = kind.split(';').next().is_some_and(|it| it.trim().eq_ignore_ascii_case("application/json"));
    let report = is_json.then(|| AccessReport::parse(&body)).flatten().ok_or_else(|| {
        // The reason may quote the body.
        Problem(Code::BadContent, "the body is neither an entry nor a list of entries of http-logger".into())
    })?;
    let count = report.len();
    if count > ENTRIES_MAX {
        return Err(Problem(Code::BadContent, format!("at most {ENTRIES_MAX} entries (batch_max_size)")));
    }
    let paths = api.cluster.evidence.gateway_paths();
    let (mut noted, mut unusable) = (0, report.unusable);
    for entry in &report.entries {
        let Some(address) = entry.address() else {
            unusable += 1;
            continue;
        };
        let kind = entry.kind(&paths);
        noted += usize::from(kind.is_some_and(|kind| api.cluster.evidence.note_gateway(kind, address)));
    }
    Ok(Json(json!({"entries": count, "noted": noted, "unusable": unusable})))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(report: &str) -> Vec<(Option<IpAddr>, Option<EvidenceKind>)> {
        let entries = AccessReport::parse(report.as_bytes()).unwrap().entries;
        let paths = GatewayPaths { captcha: vec!["/captcha".into()], login: vec!["/login".into()] };
        entries.iter().map(|entry| (entry.address(), entry.kind(&paths))).collect()
    }

    #[test]
    fn entries_of_both_formats_are_read() {
        let short = r#"[
            {"route_id":"1","client_ip":"192.0.2.7","host":"chat.example","uri":"/v1/keys/none","method":"GET","status":404,"@timestamp":"2026-11-28T16:00:08+00:00"},
            {"client_ip":"2001:db8::7","uri":"/login?token=secret","status":"401"},
            {"client_ip":"192.0.2.8","uri":"/captcha/new","status":200},
            {"client_ip":"192.0.2.8","uri":"/","status":200},
            {"client_ip":"192.0.2.9","uri":"/login","status":422},
            {"client_ip":"192.0.2.9","uri":"/login"},
            {"client_ip":"unix:","uri":"/","status":403}
        ]"#;
        let at = |text: &str| text.parse().ok();
        assert_eq!(
            kinds(short),
            [
                (at("192.0.2.7"), Some(EvidenceKind::GatewayNotFound)),
                (at("2001:db8::7"), Some(EvidenceKind::GatewayDenied)),
                (at("192.0.2.8"), Some(EvidenceKind::GatewayCaptcha)),
                (at("192.0.2.8"), None),
                (at("192.0.2.9"), Some(EvidenceKind::GatewayLogin)),
                (at("192.0.2.9"), Some(EvidenceKind::GatewayLogin)),
                (None, Some(EvidenceKind::GatewayDenied)),
            ]
        );
        let full = r#"{"client_ip":"127.0.0.1","service_id":"","start_time":1602211788041,"latency":68,
            "upstream":"127.0.0.1:1982","route_id":"1","server":{"version":"3.9.1","hostname":"edge"},
            "request":{"url":"http://127.0.0.1:9080/hello?k=v","uri":"/hello?k=v","method":"GET","size":81,
            "querystring":{"k":"v"},"headers":{"authorization":"Bearer secret","host":"127.0.0.1:9080"}},
            "response":{"status":403,"size":190,"headers":{"server":"APISIX/3.9.1"}}}"#;
        assert_eq!(kinds(full), [(at("127.0.0.1"), Some(EvidenceKind::GatewayDenied))]);
    }

    #[test]
    fn bad_entry_and_bytes_that_are_no_text_lose_no_other_entry() {
        let mut body = br#"[{"client_ip":["no","text"]},7,{"client_ip":"192.0.2.7","uri":"/a"#.to_vec();
        body.extend_from_slice(b"\xff\xfe");
        body.extend_from_slice(br#"","status":404},{"client_ip":"192.0.2.8","uri":"/","status":401}]"#);
        let report = AccessReport::parse(&body).unwrap();
        assert_eq!((report.entries.len(), report.unusable), (2, 2));
        let kinds: Vec<_> = report.entries.iter().map(|entry| entry.kind(&GatewayPaths::default())).collect();
        assert_eq!(kinds, [Some(EvidenceKind::GatewayNotFound), Some(EvidenceKind::GatewayDenied)]);
        assert!(AccessReport::parse(b"\"secret\"").is_none() && AccessReport::parse(b"[{").is_none());
        let many = format!("[{}]", vec!["{}"; ENTRIES_MAX + 9].join(","));
        assert_eq!(AccessReport::parse(many.as_bytes()).unwrap().len(), ENTRIES_MAX + 1);
    }
}
