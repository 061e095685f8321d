//! The command line of `kubectl runnel`.
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgGroup, Args, Parser, Subcommand, ValueEnum};
use runnel_proto::model::is_subdomain;

use super::output::{ListOutput, ListOutputParser};

/// The namespace of hub and agents.
pub const SYSTEM: &str = "runnel-system";

/// The exit codes, a part of `--help`.
const CODES: &str = "Exit codes: 0 done; 1 failed (doctor: a check of the installation failed, with --rules also one of a rule); 2 wrong usage; \
3 timed out (install --wait, join, unjoin, uninstall, approve, wait); 4 plan: something would or may fail, or be blocked; status --exit-code: \
something is not ready.

The charts are installed by your own helm (3.14 or newer), found in PATH or named by RUNNEL_HELM.";

/// Installs Runnel, joins and removes clusters, and shows the state of rules and members.
#[derive(Debug, Parser)]
#[command(name = "kubectl-runnel", bin_name = "kubectl runnel", version, about, after_help = CODES)]
pub struct Cli {
    /// Kubeconfig file; else $KUBECONFIG or ~/.kube/config, as kubectl has it.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the hub; else the current one.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Namespace of hub and agents; else runnel-system.
    #[arg(short = 'n', long, global = true, value_name = "NAME", value_parser = namespace_name)]
    pub namespace: Option<String>,
    /// The connection to the cluster of the context.
    #[command(flatten)]
    pub connection: Connection,
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// kubectl's flags for the connection to the cluster that `--context` names. They precede the
/// kubeconfig. Their ids differ from those of all arguments of commands, such as the name of a cluster.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Connection")]
pub struct Connection {
    /// The user to impersonate.
    #[arg(
        id = "connection-as",
        long = "as",
        global = true,
        value_name = "USER",
        hide_short_help = true
    )]
    pub as_user: Option<String>,
    /// A group to impersonate; may be given several times.
    #[arg(
        id = "connection-as-group",
        long = "as-group",
        global = true,
        value_name = "GROUP",
        hide_short_help = true
    )]
    pub as_groups: Vec<String>,
    /// The cluster of the kubeconfig, instead of that of the context.
    #[arg(
        id = "connection-cluster",
        long = "cluster",
        global = true,
        value_name = "NAME",
        hide_short_help = true
    )]
    pub cluster: Option<String>,
    /// The user of the kubeconfig, instead of that of the context.
    #[arg(
        id = "connection-user",
        long = "user",
        global = true,
        value_name = "NAME",
        hide_short_help = true
    )]
    pub user: Option<String>,
    /// The address of the API server.
    #[arg(
        id = "connection-server",
        short = 's',
        long = "server",
        global = true,
        value_name = "URL",
        hide_short_help = true
    )]
    pub server: Option<String>,
    /// The bearer token for the API server.
    #[arg(
        id = "connection-token",
        long = "token",
        global = true,
        value_name = "TOKEN",
        hide_short_help = true
    )]
    pub token: Option<String>,
    /// The time limit of one request, such as 30s; 0 is none.
    #[arg(
        id = "connection-request-timeout",
        long = "request-timeout",
        global = true,
        value_name = "DURATION",
        hide_short_help = true
    )]
    pub request_timeout: Option<String>,
}

/// Reads the name of a namespace.
fn namespace_name(text: &str) -> Result<String, String> {
    if is_subdomain(text) {
        Ok(text.to_owned())
    } else {
        Err("a namespace has lowercase letters, digits and `-`".to_owned())
    }
}

/// `--namespace` of a command for which it is not the namespace of hub and agents.
fn namespace(help: &'static str) -> Arg {
    let argument = Arg::new("namespace").short('n').long("namespace");
    let argument = argument.value_name("NAME").help(help);
    argument.value_parser(namespace_name)
}

/// `--namespace` of the commands that concern no namespace.
fn no_namespace() -> Arg {
    namespace("Not used by this command").hide(true)
}

/// `--namespace` of the commands that concern a rule.
fn rule_namespace() -> Arg {
    namespace("Namespace of the rule; else that of the context")
}

/// `--context` of the commands that concern a member.
fn member_context() -> Arg {
    let argument = Arg::new("context").long("context").value_name("NAME");
    argument.help("The context of the member; --hub-context is that of the hub")
}

/// The subcommand.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Install or upgrade the hub in the cluster of the current context.
    Install(InstallArgs),
    /// Let a cluster join: a join string on the hub, an agent in the member; waits until it is connected.
    #[command(arg = member_context())]
    Join(Join),
    /// Show rules, or one rule with its clusters and failures.
    #[command(arg = rule_namespace())]
    Status(Status),
    /// Show the member clusters.
    #[command(arg = no_namespace())]
    Members(Members),
    /// Approve what waits: removals above a limit, of one rule or of the fleet, or the next wave of a rule's rollout. Lists
    /// it, asks for confirmation, and approves exactly that.
    #[command(arg = rule_namespace())]
    Approve(Approve),
    /// Removes a cluster in order: its copies are deleted or retained as each rule's deletionPolicy
    /// says.
    #[command(arg = member_context())]
    Unjoin(Unjoin),
    /// Keep the copies of a deleted rule in a cluster that was away: its removal is not carried out when the cluster is back.
    #[command(arg = no_namespace())]
    ForgetRemoval(ForgetRemoval),
    /// List the rules that members have copies of and the hub does not have, and delete these copies.
    #[command(arg = no_namespace())]
    Orphans(Orphans),
    /// Remove Runnel from the hub: rules, members, the hub itself, its CRDs.
    Uninstall(Uninstall),
    /// Run common health checks and suggest fixes.
    Doctor(Doctor),
    /// Explain the state of one copy.
    #[command(arg = namespace("Namespace in which you may create copyexplanations; else that of the context"))]
    Explain(Explain),
    /// Show what was done to the copies of a rule, and why: the last 50 Events about it.
    #[command(arg = rule_namespace())]
    History(History),
    /// Revert a rule to the state of a completed rollout, through its waves, or end that. Edits are not sent meanwhile.
    #[command(arg = rule_namespace())]
    Revert(Revert),
    /// Wait until every cluster of a rule has the newest sources: also those of an edit that the hub has not observed yet.
    #[command(arg = rule_namespace())]
    Wait(Wait),
    /// Show what a rule would do, saved or not: which copies it would create, change, take over, remove, block or refuse.
    #[command(arg = rule_namespace())]
    Plan(Plan),
    /// Put manifests into one ManifestBundle, or into several, and print them for kubectl apply. Reads no cluster.
    #[command(arg = namespace("Namespace of the bundle; else kubectl decides"))]
    Bundle(BundleArgs),
    /// Read what other copiers do in a cluster, and print rules that do the same. Nothing is changed.
    #[command(arg = namespace("Namespace of the sources; else all namespaces"), arg = member_context())]
    Import(ImportArgs),
    /// Serve a page on this machine that shows rules, clusters, rollouts and approvals. It changes nothing.
    #[command(arg = namespace("Namespace of the rules; else all rules"))]
    Ui(Ui),
    /// Show the versions of this plugin, the hub and the agents.
    Version(Version),
    /// Print a completion script.
    #[command(arg = no_namespace())]
    Completion(Completion),
    /// What may follow these words: for kubectl, which asks `kubectl_complete-runnel`.
    #[command(name = "__complete", hide = true)]
    Complete(Complete),
}

/// Removes suggested subcommands that differ from the given one in more than a third of their
/// letters: clap suggests `uninstall` for `ui`.
pub fn keep_near_suggestions(error: &mut clap::Error) {
    let given = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(given)) => given.clone(),
        _ => return,
    };
    let is_near = |known: &String| {
        let longer = known.chars().count().max(given.chars().count());
        strsim::damerau_levenshtein(known, &given) * 3 <= longer
    };
    let near = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::String(known)) => Some(known).into_iter().collect(),
        Some(ContextValue::Strings(known)) => known.iter().collect::<Vec<_>>(),
        _ => return,
    };
    let near: Vec<_> = near
        .into_iter()
        .filter(|known| is_near(known))
        .cloned()
        .collect();
    error.remove(ContextKind::SuggestedSubcommand);
    if !near.is_empty() {
        error.insert(
            ContextKind::SuggestedSubcommand,
            ContextValue::Strings(near),
        );
    }
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table with more columns.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// Values that are passed to helm.
#[derive(Clone, Debug, Default, Args)]
pub struct ChartValues {
    /// A file of values for the chart; may be given several times.
    #[arg(short = 'f', long = "values", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// A value of the chart, as helm takes it; may be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The registry of the image, such as registry.example.com.
    #[arg(long, value_name = "HOST")]
    pub image_registry: Option<String>,
    /// The tag of the image.
    #[arg(long, value_name = "TAG")]
    pub image_tag: Option<String>,
    /// A Secret with registry credentials, in Runnel's namespace; may be given several times.
    #[arg(long = "image-pull-secret", value_name = "NAME")]
    pub image_pull_secrets: Vec<String>,
    /// Discard the values of an earlier installation; by default they are kept.
    #[arg(long)]
    pub reset_values: bool,
    /// Print all values of the chart with their defaults, and do nothing.
    #[arg(long)]
    pub show_values: bool,
}

/// Install or upgrade the hub.
#[derive(Debug, Args)]
pub struct InstallArgs {
    /// The address of the hub for agents in other clusters; may be repeated.
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT")]
    pub advertise: Vec<String>,
    /// Number of hub processes.
    #[arg(long, value_name = "NUMBER")]
    pub replicas: Option<u32>,
    /// ClusterIP, NodePort or LoadBalancer.
    #[arg(long, value_name = "TYPE")]
    pub service_type: Option<String>,
    /// Read sources in these namespaces only.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub source_namespaces: Vec<String>,
    /// Values of the chart runnel-hub.
    #[command(flatten)]
    pub values: ChartValues,
    /// Wait until the hub is ready.
    #[arg(long)]
    pub wait: bool,
    /// Timeout.
    #[arg(long, default_value = "5m", value_name = "DURATION")]
    pub timeout: String,
}

/// The member's cluster.
#[derive(Clone, Debug, Default, Args)]
pub struct MemberAccess {
    /// The context of the hub; else the current one.
    #[arg(long, value_name = "NAME")]
    pub hub_context: Option<String>,
    /// Kubeconfig file of the member, where it is not in the same one as the hub.
    #[arg(long, value_name = "FILE")]
    pub member_kubeconfig: Option<PathBuf>,
}

/// Let a cluster join.
#[derive(Debug, Args)]
pub struct Join {
    /// The name that the cluster gets on the hub, such as eu-1.
    #[arg(
        required_unless_present = "show_values",
        default_value = "",
        hide_default_value = true
    )]
    pub cluster: String,
    /// The cluster.
    #[command(flatten)]
    pub member: MemberAccess,
    /// The present name of the cluster, which gets the new one. Its copies, labels and settings stay, and the MemberCluster
    /// with the old name is deleted.
    #[arg(long, value_name = "OLD")]
    pub replace: Option<String>,
    /// A label of the MemberCluster, by which rules select; may be given several times.
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<String>,
    /// An address of the hub, instead of those that it advertises; may be given several times.
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT")]
    pub advertise: Vec<String>,
    /// The validity of the join string.
    #[arg(long, default_value = "1h", value_name = "DURATION")]
    pub ttl: String,
    /// Target namespaces in the member: names or globs. With names only, the agent gets no
    /// permission on Secrets in other namespaces.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub namespaces: Vec<String>,
    /// Denied namespaces in the member.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub denied_namespaces: Vec<String>,
    /// Let rules create namespaces in the member.
    #[arg(long)]
    pub create_namespaces: bool,
    /// The agent's proxy to the hub, such as `http://proxy.example.com:3128`.
    #[arg(long, value_name = "URL")]
    pub https_proxy: Option<String>,
    /// Values of the chart runnel-agent.
    #[command(flatten)]
    pub values: ChartValues,
    /// Timeout for the connection.
    #[arg(long, default_value = "3m", value_name = "DURATION")]
    pub timeout: String,
}

/// Show rules, or one rule.
#[derive(Debug, Args)]
pub struct Status {
    /// One rule: NAME, NAMESPACE/NAME, or cdrule/NAME for a ClusterDistributionRule.
    pub rule: Option<String>,
    /// The rules of all namespaces, and ClusterDistributionRules.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// The rules with these labels, as in `kubectl get -l`.
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "rule")]
    pub selector: Option<String>,
    /// Output format, as kubectl has it; for one rule, `wide` lists every cluster and its failures.
    #[arg(short = 'o', long, value_name = "FORMAT", value_parser = ListOutputParser)]
    pub output: Option<ListOutput>,
    /// With RULE: only the clusters without the newest revision of every source.
    #[arg(long, requires = "rule")]
    pub outdated: bool,
    /// Print the rules whenever they change; with RULE and `-o wide` its clusters.
    #[arg(short = 'w', long, conflicts_with = "outdated")]
    pub watch: bool,
    /// Print no header, and nothing below the table.
    #[arg(long)]
    pub no_headers: bool,
    /// Exit with 4 if a rule is not ready; with --outdated if a cluster is outdated.
    #[arg(long, conflicts_with = "watch")]
    pub exit_code: bool,
    /// The namespace of the hub.
    #[arg(long, value_name = "NAME", default_value = SYSTEM, value_parser = namespace_name)]
    pub hub_namespace: String,
}

/// Approve what waits.
#[derive(Debug, Args)]
pub struct Approve {
    /// The rule: NAME, NAMESPACE/NAME, or cdrule/NAME for a ClusterDistributionRule; without it, all removals that wait in the fleet.
    pub rule: Option<String>,
    /// Do not ask.
    #[arg(short = 'y', long)]
    pub yes: bool,
    /// How long to wait until the hub has acted on it.
    #[arg(long, default_value = "30s", value_name = "DURATION")]
    pub timeout: String,
}

/// Show the member clusters.
#[derive(Debug, Args)]
pub struct Members {
    /// The name of one cluster.
    pub cluster: Option<String>,
    /// The clusters with these labels, as in `kubectl get -l`.
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "cluster")]
    pub selector: Option<String>,
    /// Output format, as kubectl has it.
    #[arg(short = 'o', long, value_name = "FORMAT", value_parser = ListOutputParser)]
    pub output: Option<ListOutput>,
    /// Print the members whenever they change.
    #[arg(short = 'w', long)]
    pub watch: bool,
    /// Print no header.
    #[arg(long)]
    pub no_headers: bool,
    /// The namespace of the hub.
    #[arg(long, value_name = "NAME", default_value = SYSTEM, value_parser = namespace_name)]
    pub hub_namespace: String,
}

/// Let a cluster leave.
#[derive(Debug, Args)]
pub struct Unjoin {
    /// The name of the cluster on the hub.
    pub cluster: String,
    /// The cluster; if given with --context or --member-kubeconfig, its agent is uninstalled.
    #[command(flatten)]
    pub member: MemberAccess,
    /// Remove a cluster that cannot be reached; its copies stay where they are.
    #[arg(long)]
    pub force: bool,
    /// Do not ask for confirmation.
    #[arg(long)]
    pub yes: bool,
    /// Print what would be removed, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Timeout.
    #[arg(long, default_value = "2m", value_name = "DURATION")]
    pub timeout: String,
}

/// Keep the copies of a deleted rule.
#[derive(Debug, Args)]
pub struct ForgetRemoval {
    /// The name of the cluster on the hub.
    pub cluster: String,
    /// The deleted rule: namespace/name, or the name of a ClusterDistributionRule; or its uid.
    pub rule: String,
}

/// List copies of rules that the hub does not have.
#[derive(Debug, Args)]
pub struct Orphans {
    /// Only of these clusters.
    #[arg(value_name = "CLUSTER")]
    pub clusters: Vec<String>,
    /// Delete the copies. A copy that a rule of the hub selects now is that rule's, and is not listed.
    #[arg(long)]
    pub delete: bool,
    /// Do not ask whether to delete them.
    #[arg(long, requires = "delete")]
    pub yes: bool,
}

/// The deletion policy of the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Copies {
    /// They stay, as objects of their own.
    Keep,
    /// They are removed from every member.
    Delete,
}

/// Remove Runnel from the hub.
#[derive(Debug, Args)]
pub struct Uninstall {
    /// The deletion policy of the copies in the members.
    #[arg(long, value_enum)]
    pub copies: Copies,
    /// Continue if a member is disconnected or the hub does not answer; lists what is not removed.
    #[arg(long)]
    pub force: bool,
    /// Do not ask for confirmation.
    #[arg(long)]
    pub yes: bool,
    /// Print what would be removed, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Timeout of each step.
    #[arg(long, default_value = "2m", value_name = "DURATION")]
    pub timeout: String,
}

/// Run common health checks.
#[derive(Debug, Args)]
pub struct Doctor {
    /// A rule that is not ready is a failure, too. Without it the exit code is about the installation.
    #[arg(long)]
    pub rules: bool,
    /// Output format.
    #[arg(short = 'o', long, value_enum)]
    pub output: Option<Output>,
}

/// Explain one copy.
#[derive(Debug, Args)]
pub struct Explain {
    /// The copy: CLUSTER/NAMESPACE/KIND/NAME, such as eu-1/default/secret/login, or CLUSTER/KIND/NAME without a namespace. KIND
    /// may be `plural.group`.
    pub copy: String,
    /// Output format.
    #[arg(short = 'o', long, value_enum)]
    pub output: Option<Output>,
}

/// The output format of `history`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HistoryOutput {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// The names of the Events.
    Name,
}

/// Show the history of a rule.
#[derive(Debug, Args)]
pub struct History {
    /// The rule: NAME, NAMESPACE/NAME, or cdrule/NAME for a ClusterDistributionRule; it may be deleted.
    pub rule: String,
    /// List the states of completed rollouts to which `kubectl runnel revert` can go back.
    #[arg(long, conflicts_with = "output")]
    pub revisions: bool,
    /// Output format.
    #[arg(short = 'o', long, value_enum)]
    pub output: Option<HistoryOutput>,
}

/// Revert a rule.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["to", "end"]))]
pub struct Revert {
    /// The rule: NAME, NAMESPACE/NAME, or cdrule/NAME for a ClusterDistributionRule.
    pub rule: String,
    /// The state: its number in `kubectl runnel history RULE --revisions`, or its revision.
    #[arg(long, value_name = "NUMBER|REVISION")]
    pub to: Option<String>,
    /// End the revert: what the rule and its sources have now is rolled out.
    #[arg(long)]
    pub end: bool,
    /// Do not ask.
    #[arg(short = 'y', long)]
    pub yes: bool,
}

/// Wait for a rule.
#[derive(Debug, Args)]
pub struct Wait {
    /// The rule: NAME, NAMESPACE/NAME, or cdrule/NAME for a ClusterDistributionRule.
    pub rule: String,
    /// How long to wait; then the exit code is 3, and what is missing is printed.
    #[arg(long, default_value = "5m", value_name = "DURATION")]
    pub timeout: String,
    /// The namespace of the hub.
    #[arg(long, value_name = "NAME", default_value = SYSTEM, value_parser = namespace_name)]
    pub hub_namespace: String,
}

/// Where writes are tried as a dry run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DryRun {
    /// At the members' API servers, which check them and store nothing. The content is sent to the
    /// members.
    Members,
}

/// Preview a rule.
#[derive(Debug, Args)]
pub struct Plan {
    /// A saved rule: NAME, NAMESPACE/NAME, or cdrule/NAME for a ClusterDistributionRule.
    #[arg(required_unless_present = "files", conflicts_with = "files")]
    pub rule: Option<String>,
    /// A file or directory with rules, DistributionGrants, MemberClusters or ManifestBundles, YAML or JSON; - is standard input. May be given several times.
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    pub files: Vec<String>,
    /// Search subdirectories too.
    #[arg(short = 'R', long, requires = "files")]
    pub recursive: bool,
    /// Show what the delete of the rule, grant, MemberCluster or ManifestBundle would do.
    #[arg(long, conflicts_with = "dry_run")]
    pub delete: bool,
    /// Try each write as a dry run, to find refusals of the members' API servers, quotas and
    /// webhooks.
    #[arg(long, value_enum)]
    pub dry_run: Option<DryRun>,
    /// List the changes of each copy; disable with `--diff=false`.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub diff: bool,
    /// Output format.
    #[arg(short = 'o', long, value_enum)]
    pub output: Option<Output>,
}

/// Make a bundle.
#[derive(Debug, Args)]
pub struct BundleArgs {
    /// A file or directory with manifests, YAML or JSON; - is standard input. May be given several times.
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true)]
    pub files: Vec<String>,
    /// Search subdirectories too.
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// The name of the bundle; by default that of the only file or directory.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Make as many bundles as needed, NAME-1, NAME-2 and so on: one for each namespace of the manifests, in that namespace, and
    /// several where one has no room. Secrets are listed and left out.
    #[arg(long)]
    pub split: bool,
    /// Output format.
    #[arg(short = 'o', long, value_enum, default_value_t = BundleOutput::Yaml)]
    pub output: BundleOutput,
}

/// The format of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BundleOutput {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// Convert the configuration of other copiers into rules: kubernetes-replicator,
/// kubernetes-reflector, config-syncer, or one that copies by label.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The cluster with the copies: the context --context; by default the hub's own cluster.
    #[command(flatten)]
    pub member: MemberAccess,
    /// The copiers whose annotations are read; by default all three.
    #[arg(long, value_enum, value_delimiter = ',', conflicts_with = "label")]
    pub from: Vec<Copier>,
    /// The label by which an operator copies objects; any value without `=VALUE`.
    #[arg(long, value_name = "KEY=VALUE", requires = "to")]
    pub label: Option<String>,
    /// With --label: where that operator copies to, as names or globs.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAMESPACES",
        requires = "label"
    )]
    pub to: Vec<String>,
    /// With --label: the kinds that it copies, as PLURAL or PLURAL.GROUP; without it ConfigMaps and Secrets with equal copies
    /// in the target namespaces.
    #[arg(long, value_delimiter = ',', value_name = "KINDS", requires = "label")]
    pub resources: Vec<String>,
    /// The members that the rules name; by default the cluster that is read.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub clusters: Vec<String>,
    /// Let the rules choose every member.
    #[arg(long, conflicts_with = "clusters")]
    pub all_clusters: bool,
}

/// Serve a page.
#[derive(Debug, Args)]
pub struct Ui {
    /// The port on 127.0.0.1; 0 is a free one.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
    /// Open the page in the browser.
    #[arg(long)]
    pub open: bool,
    /// The namespace of the hub.
    #[arg(long, value_name = "NAME", default_value = SYSTEM, value_parser = namespace_name)]
    pub hub_namespace: String,
}

/// Show versions.
#[derive(Debug, Args)]
pub struct Version {
    /// Only the version of this plugin.
    #[arg(long)]
    pub client: bool,
    /// Output format.
    #[arg(short = 'o', long, value_enum)]
    pub output: Option<Output>,
}

/// The shell of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// For `kubectl-runnel` in bash.
    Bash,
    /// For `kubectl-runnel` in zsh.
    Zsh,
    /// For `kubectl-runnel` in fish.
    Fish,
    /// For `kubectl-runnel` in PowerShell.
    Powershell,
    /// For `kubectl runnel` in every shell that completes kubectl: save it as `kubectl_complete-runnel` in PATH.
    Kubectl,
}

/// Print a completion script.
#[derive(Debug, Args)]
pub struct Completion {
    /// The shell.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// The arguments to complete.
#[derive(Debug, Args)]
pub struct Complete {
    /// The words so far; the last one is not finished.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

/// The copiers that can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Copier {
    /// kubernetes-replicator (mittwald).
    Replicator,
    /// kubernetes-reflector (emberstack).
    Reflector,
    /// config-syncer, formerly kubed (appscode).
    ConfigSyncer,
    /// A copier that selects by label: see --label.
    #[value(skip)]
    Label,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn fate_of_the_copies_is_a_required_choice() {
        let error = Cli::try_parse_from(["kubectl-runnel", "uninstall"]).unwrap_err();
        assert!(error.to_string().contains("--copies <COPIES>"), "{error}");
        assert_eq!(error.exit_code(), 2);
        let cli =
            Cli::try_parse_from(["kubectl-runnel", "join", "eu-1", "--context", "eu"]).unwrap();
        assert_eq!(cli.context.as_deref(), Some("eu"));
        let before = ["kubectl-runnel", "-n", "shop", "--context", "eu", "import"];
        let after = ["kubectl-runnel", "import", "-n", "shop", "--context", "eu"];
        for words in [before, after] {
            let cli = Cli::try_parse_from(words).unwrap();
            let found = (cli.namespace.as_deref(), cli.context.as_deref());
            assert_eq!(found, (Some("shop"), Some("eu")), "{words:?}");
        }
        let template = "jsonpath={.items[*].metadata.name}";
        for words in [
            ["status", "-A", "-l", "a=b", "-o", template],
            ["members", "-w", "-l", "a in (b)", "-o", "name"],
        ] {
            let words = ["kubectl-runnel"].iter().chain(&words);
            assert!(Cli::try_parse_from(words).is_ok());
        }
        for wrong in [
            ["status", "-o", "table"],
            ["status", "-o", "jsonpath=.metadata"],
            ["status", "--watch", "--exit-code"],
            ["members", "eu-1", "--selector=a"],
        ] {
            let words = ["kubectl-runnel"].iter().chain(&wrong);
            assert_eq!(Cli::try_parse_from(words).unwrap_err().exit_code(), 2);
        }
        for (words, named) in [
            (["-n", "A_b", "status"], "--namespace"),
            (["members", "--hub-namespace", "../x"], "--hub-namespace"),
        ] {
            let error = Cli::try_parse_from(["kubectl-runnel"].iter().chain(&words));
            let error = error.unwrap_err();
            let text = error.to_string();
            assert!(text.contains(named) && error.exit_code() == 2, "{text}");
        }
        assert!(Cli::try_parse_from(["kubectl-runnel", "join"]).is_err());
        assert!(Cli::try_parse_from(["kubectl-runnel", "join", "--show-values"]).is_ok());
    }

    #[test]
    fn name_of_a_cluster_is_no_connection_flag() {
        for words in [
            &["join"][..],
            &["unjoin"],
            &["members"],
            &["forget-removal", "a/b"],
            &["orphans"],
        ] {
            let command = words[0];
            let words = ["kubectl-runnel"].iter().chain(words).chain(&["eu-1"]);
            let cli = Cli::try_parse_from(words).unwrap();
            assert_eq!(cli.connection.cluster, None, "{command}");
        }
    }

    #[test]
    fn only_near_subcommands_are_suggested() {
        let suggested = |word: &str| {
            let mut error = Cli::try_parse_from(["kubectl-runnel", word]).unwrap_err();
            keep_near_suggestions(&mut error);
            let text = error.to_string();
            assert!(text.contains(word), "{text}");
            text.contains("similar")
        };
        assert!(suggested("statsu") && suggested("uninstal") && suggested("aprove"));
        for far in ["rules", "un", "release", "zz"] {
            assert!(!suggested(far), "{far}");
        }
    }

    #[test]
    fn every_command_has_the_connection_flags_of_kubectl() {
        let flags = [
            "--as=eve",
            "--as-group=a",
            "--as-group=b",
            "--cluster=c",
            "--user=u",
            "--server=https://k:6443",
            "--token=t",
            "--request-timeout=5s",
        ];
        let commands: [&[&str]; 6] = [
            &["join", "eu-1"],
            &["unjoin", "eu-1"],
            &["status"],
            &["import", "--clusters=eu-1"],
            &["explain", "a/b/c/d"],
            &["doctor"],
        ];
        for command in commands {
            let before = ["kubectl-runnel"].iter().chain(&flags).chain(command);
            let after = ["kubectl-runnel"].iter().chain(command).chain(&flags);
            for words in [before.collect::<Vec<_>>(), after.collect()] {
                let connection = Cli::try_parse_from(words).unwrap().connection;
                assert_eq!(connection.cluster.as_deref(), Some("c"));
                assert_eq!(connection.as_user.as_deref(), Some("eve"));
                assert_eq!(connection.as_groups, ["a", "b"]);
                assert_eq!(connection.request_timeout.as_deref(), Some("5s"));
            }
        }
    }
}
