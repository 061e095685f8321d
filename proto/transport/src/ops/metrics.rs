//! Metrics: the registry of a process, and the kernel's figures of the process.
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
pub use prometheus_client::registry::Registry;

/// Returns a registry with `runnel_build_info` and the usual `process_*` metrics. Callers add their
/// own under `registry.sub_registry_with_prefix("runnel_hub")` or the like.
pub fn registry(component: &'static str, version: &'static str) -> Registry {
    let mut registry = Registry::default();
    let build = Info::new(vec![("component", component), ("version", version)]);
    registry.register("runnel_build", "What runs here", build);
    let started = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64();
    registry.register_collector(Box::new(Process { started }));
    registry
}

/// Reads `/proc/self` at each scrape; unreadable values are omitted.
#[derive(Debug)]
struct Process {
    started: f64,
}

/// Ticks of `/proc/self/stat` in a second; the kernel shows programs this value on every architecture of ours.
const TICKS: f64 = 100.0;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let mut gauge = |name: &str, help: &str, value: Option<f64>| {
            let Some(value) = value else { return Ok(()) };
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
        };
        gauge(
            "process_resident_memory_bytes",
            "Resident memory",
            resident_bytes(),
        )?;
        gauge("process_open_fds", "Open file descriptors", open_files())?;
        gauge(
            "process_start_time_seconds",
            "Start of the process since 1970",
            Some(self.started),
        )?;
        if let Some(seconds) = cpu_seconds() {
            let metric = ConstCounter::new(seconds);
            let help = "Processor time of the process";
            metric.encode(encoder.encode_descriptor(
                "process_cpu_seconds",
                help,
                None,
                metric.metric_type(),
            )?)?;
        }
        Ok(())
    }
}

fn resident_bytes() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024.0)
}

fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field, the program's name in parentheses, may contain any character: fields are
    // counted after it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS)
}

fn open_files() -> Option<f64> {
    // Reading the folder is itself one open file.
    let count = fs::read_dir("/proc/self/fd")
        .ok()?
        .count()
        .saturating_sub(1);
    u32::try_from(count).ok().map(f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_and_build_are_exported() {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry("hub", "1.2.3")).unwrap();
        assert!(
            text.contains("runnel_build_info{component=\"hub\",version=\"1.2.3\"} 1"),
            "{text}"
        );
        for name in [
            "process_resident_memory_bytes ",
            "process_open_fds ",
            "process_cpu_seconds_total ",
        ] {
            let line = text
                .lines()
                .find(|line| line.starts_with(name))
                .unwrap_or_default();
            let value: f64 = line
                .rsplit(' ')
                .next()
                .unwrap_or_default()
                .parse()
                .unwrap_or(-1.0);
            assert!(value >= 0.0, "{name}: {text}");
        }
    }
}
