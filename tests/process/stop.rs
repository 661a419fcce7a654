//! A planned stop of a single node: nothing goes wrong, so nothing is logged as wrong.

use rustix::process::Signal;

use crate::support::Process;

/// Stops in a row: the error depended on what the lease did at that moment.
const STOPS: usize = 5;

#[test]
fn planned_stop_of_a_single_node_logs_no_error() {
    for _ in 0..STOPS {
        let mut node = Process::start(&[]);
        node.signal(Signal::TERM);
        let status = node.exit();
        let log = node.stderr();
        assert!(status.success(), "{status}: {log}");
        let (_, of_stop) = log.split_once("stopping: ").expect("the stop is announced");
        assert!(!of_stop.contains("ERROR") && !of_stop.contains("WARN"), "{log}");
    }
}
