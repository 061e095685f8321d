//! The parts of the hub's chart that the plugin needs, found by their labels: their names follow from that of the release.
use runnel_proto::model::is_subdomain;

/// The labels of every part of the hub's chart, encoded for a query.
const HUB: &str = "app.kubernetes.io%2Fpart-of%3Drunnel%2Capp.kubernetes.io%2Fcomponent%3Dhub";

/// A part of the hub's chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChartComponent {
    /// The Service for agents and users.
    Service,
    /// The ServiceAccount that may read rules.
    Query,
    /// The ServiceAccount that is trusted with plans.
    Plan,
}

impl ChartComponent {
    /// Returns the name if the release has the name of the chart.
    pub fn usual(self) -> &'static str {
        match self {
            Self::Service => "runnel-hub",
            Self::Query => "runnel-hub-query",
            Self::Plan => "runnel-hub-plan",
        }
    }

    /// Its kind's plural.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Service => "services",
            Self::Query | Self::Plan => "serviceaccounts",
        }
    }

    /// The path of the list that contains it.
    pub fn path(self, namespace: &str) -> String {
        let own = match self {
            // That of the metrics is another one.
            Self::Service => "%21runnel.dev%2Fmetrics",
            Self::Query => "runnel.dev%2Faccount%3Dquery",
            Self::Plan => "runnel.dev%2Faccount%3Dplan",
        };
        format!(
            "/api/v1/namespaces/{namespace}/{}?labelSelector={HUB}%2C{own}",
            self.resource()
        )
    }

    /// Returns the name among the found objects, or the usual name if there are none.
    ///
    /// # Errors
    /// If there are several, and none has the usual name.
    pub fn name<'a>(self, found: impl Iterator<Item = &'a str>) -> Result<String, Ambiguous> {
        let names: Vec<&str> = found.filter(|name| is_subdomain(name)).collect();
        match names.as_slice() {
            [one] => Ok((*one).to_owned()),
            [] => Ok(self.usual().to_owned()),
            several if several.contains(&self.usual()) => Ok(self.usual().to_owned()),
            several => Err(Ambiguous {
                resource: self.resource(),
                names: several.join(", "),
            }),
        }
    }
}

/// Several objects have the labels of one part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "several {resource} have the labels of the hub: {names}; remove those that are not its own"
)]
pub struct Ambiguous {
    resource: &'static str,
    names: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_called_as_its_release_has_it() {
        let name = |part: ChartComponent, found: &[&str]| part.name(found.iter().copied());
        assert_eq!(
            name(ChartComponent::Plan, &["mine-plan"]),
            Ok("mine-plan".to_owned())
        );
        assert_eq!(
            name(ChartComponent::Service, &["other", "runnel-hub"]),
            Ok("runnel-hub".to_owned())
        );
        // The user may not list them, or the chart has no such labels.
        assert_eq!(
            name(ChartComponent::Query, &[]),
            Ok("runnel-hub-query".to_owned())
        );
        assert_eq!(
            name(ChartComponent::Query, &["--kubeconfig=x"]),
            Ok("runnel-hub-query".to_owned())
        );
        let ambiguous = name(ChartComponent::Service, &["a", "b"]).unwrap_err();
        assert!(ambiguous.to_string().contains("a, b"), "{ambiguous}");
    }

    #[test]
    fn part_is_found_by_the_labels_of_the_chart() {
        let chart = include_str!("../../../deploy/charts/runnel-hub/templates/query.yaml");
        for (part, label) in [
            (ChartComponent::Query, "runnel.dev/account: query"),
            (ChartComponent::Plan, "runnel.dev/account: plan"),
        ] {
            let asked = part.path("s").replace("%2F", "/").replace("%3D", ": ");
            assert!(asked.contains(label) && chart.contains(label), "{asked}");
        }
        let labels = include_str!("../../../deploy/charts/runnel-hub/templates/_helpers.tpl");
        for label in [
            "app.kubernetes.io/component: hub",
            "app.kubernetes.io/part-of: runnel",
        ] {
            assert!(labels.contains(label), "{label}");
        }
    }
}
