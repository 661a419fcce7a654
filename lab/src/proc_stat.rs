//! `/proc/PID/stat`, in which the kernel describes a process or a thread in one line.

/// Returns the fields from the third on. The name in field 2 may hold anything, blanks and brackets too.
pub(crate) fn fields(stat: &str) -> Vec<&str> {
    stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect()
}
