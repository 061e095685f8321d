//! Errors between this plugin and other programs, with hints.
use std::error::Error;

/// A cluster, described for a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `the hub` or `the member`.
    pub role: &'static str,
    /// The context in the kubeconfig.
    pub context: String,
    /// The address of its API server.
    pub server: String,
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            to,
            "{} (context {}, {})",
            self.role, self.context, self.server
        )
    }
}

/// Why the API server did not do something.
pub fn call(place: &Endpoint, action: &str, error: &kube::Error) -> String {
    let kube::Error::Api(status) = error else {
        return format!(
            "cannot {action}: {}",
            unreachable(place, &error_chain(error))
        );
    };
    let reason_text = &status.message;
    match status.code {
        401 => format!(
            "cannot {action}: {place} does not accept your credentials: log in again, or choose another context"
        ),
        403 => format!(
            "cannot {action} on {place}: {reason_text}; ask its administrator for this right"
        ),
        404 if reason_text.contains("could not find the requested resource")
            || reason_text.contains("page not found") =>
        {
            format!(
                "cannot {action}: {place} does not serve Runnel's kinds: install the hub there first with `kubectl runnel \
             install`, or choose the hub's context"
            )
        }
        _ => format!("cannot {action} on {place}: {reason_text}"),
    }
}

/// Why no connection came about.
pub fn unreachable(place: &Endpoint, cause: &str) -> String {
    let lower = cause.to_lowercase();
    let hint = if lower.contains("refused") {
        "nothing listens there: is the cluster up, and is this the right context?"
    } else if lower.contains("dns") || lower.contains("lookup") || lower.contains("resolve") {
        "its name is not known here: check the kubeconfig, DNS and VPN"
    } else if lower.contains("certificate") {
        "its certificate is not the one that the kubeconfig expects: fetch a fresh kubeconfig"
    } else if lower.contains("timed out") || lower.contains("timeout") || lower.contains("elapsed")
    {
        "no answer came in time: check VPN, firewall and the address in the kubeconfig"
    } else {
        "check the kubeconfig, the network and the cluster"
    };
    format!("the API server of {place} cannot be reached ({cause}): {hint}")
}

/// An error with its causes, in one line.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = inner.source();
    }
    text
}

/// Returns the output of a failed helm, with a hint.
pub fn helm(reason_text: &str, chart: &str, place: &Endpoint) -> String {
    let reason_text = reason_text.trim();
    let text = reason_text.strip_prefix("Error: ").unwrap_or(reason_text);
    let command = if chart == "runnel-hub" {
        "install"
    } else {
        "join"
    };
    if text.contains("specifications of the schema") {
        return format!(
            "the values do not fit the chart: {text}\n`kubectl runnel {command} --show-values` prints every value with its meaning"
        );
    }
    if text.contains("unknown flag: --reset-then-reuse-values") {
        return "this helm is too old: install helm 3.14 or newer (https://helm.sh/docs/intro/install)".to_owned();
    }
    if text.contains("another operation (install/upgrade/rollback) is in progress") {
        return format!(
            "helm reports that another operation on {chart} is in progress in {place}: wait for it; if it was broken off, \
             `helm rollback {chart} -n runnel-system`, then try again"
        );
    }
    if text.contains("forbidden") {
        return format!(
            "helm may not install {chart} in {place}: {text}\nAsk its administrator for this right"
        );
    }
    if text.contains("cannot be imported into the current release")
        || text.contains("invalid ownership metadata")
    {
        return format!(
            "an object of the chart {chart} exists in {place} already and is not helm's: {text}\nRemove it, or let helm \
             take it over with the label and annotations named here"
        );
    }
    if is_timeout(text) {
        return format!(
            "{chart} is installed in {place} but was not ready in time: {text}\n`kubectl runnel doctor` shows what is wrong"
        );
    }
    format!("helm could not install {chart} in {place}: {text}")
}

/// Whether helm reported a timeout.
pub fn is_timeout(reason_text: &str) -> bool {
    reason_text.contains("timed out") || reason_text.contains("context deadline exceeded")
}

/// The installation hint for helm.
pub const NO_HELM: &str = "helm is not found in PATH, and the charts are installed by it: install helm 3.14 or newer \
    (https://helm.sh/docs/intro/install), or set RUNNEL_HELM to its path";

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn place() -> Endpoint {
        Endpoint {
            role: "the hub",
            context: "prod".into(),
            server: "https://k:6443".into(),
        }
    }

    fn api(code: u16, message: &str) -> kube::Error {
        kube::Error::Api(Box::new(Status {
            code,
            message: message.into(),
            ..Status::default()
        }))
    }

    #[test]
    fn each_answer_names_the_place_and_a_hint() {
        let reason_text = call(
            &place(),
            "list members",
            &api(403, "x is forbidden: User \"u\" cannot list resource \"x\""),
        );
        assert_eq!(
            reason_text,
            "cannot list members on the hub (context prod, https://k:6443): x is forbidden: User \"u\" cannot list \
             resource \"x\"; ask its administrator for this right"
        );
        assert!(call(&place(), "a", &api(401, "Unauthorized")).contains("log in again"));
        assert!(
            call(&place(), "a", &api(404, "404 page not found")).contains("kubectl runnel install")
        );
        assert!(call(&place(), "a", &api(409, "conflict")).ends_with(": conflict"));
    }

    #[test]
    fn unreachable_causes_are_distinguished() {
        for (cause, hint) in [
            (
                "tcp connect error: Connection refused (os error 111)",
                "nothing listens there",
            ),
            (
                "dns error: failed to lookup address information",
                "DNS and VPN",
            ),
            (
                "invalid peer certificate: UnknownIssuer",
                "fresh kubeconfig",
            ),
            ("deadline has elapsed", "firewall"),
        ] {
            let reason_text = unreachable(&place(), cause);
            assert!(
                reason_text.contains(hint) && reason_text.contains("https://k:6443"),
                "{reason_text}"
            );
        }
    }

    #[test]
    fn helm_errors_get_a_hint() {
        for (reason_text, hint) in [
            (
                "Error: values don't meet the specifications of the schema(s)\n- replicas: Invalid type",
                "--show-values",
            ),
            (
                "Error: unknown flag: --reset-then-reuse-values",
                "3.14 or newer",
            ),
            (
                "Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress",
                "helm rollback",
            ),
            (
                "Error: roles is forbidden: User \"u\" cannot create",
                "Ask its administrator",
            ),
            (
                "Error: boom",
                "helm could not install runnel-hub in the hub (context prod, https://k:6443): boom",
            ),
        ] {
            let reported = helm(reason_text, "runnel-hub", &place());
            assert!(
                reported.contains(hint) && !reported.contains("Error:"),
                "{reported}"
            );
        }
    }
}
