//! The command line: commands and flags, and which combinations are refused.

mod cluster;
mod help;
mod image_filter;
mod install;
mod kubelet_options;
mod pages;
mod serve;
#[cfg(test)]
mod tests;
mod usage_error;
mod values;

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{
    Arg, Args, FromArgMatches, Parser, Subcommand,
    builder::{ArgPredicate, Resettable},
    error::ErrorKind,
    parser::ValueSource,
};
use imagelet_core::image::{ByteSize, Percent, Platform};
use jiff::Timestamp;

pub(crate) use self::{
    cluster::{ClusterAccess, ControllerArgs, PrefetchCommand},
    help::{command, print_help},
    image_filter::ImageFilter,
    install::{InstallArgs, PodCommand, PodInstallArgs, Role},
    serve::ServeArgs,
    usage_error::{format_of, has_lines, usage_failure},
    values::is_since,
};

use self::values::{parse_log, parse_percent, parse_since, parse_wait};
use crate::output::Format;
use imagelet_node::{config::is_empty_variable, size::parse_size};
use imagelet_oci::Access;

const NO_ENDPOINT: &str =
    "`serve` listens on '--socket <PATH>' and asks '--runtime-endpoint <URI>'; it has no '--endpoint'";
const NO_TIMEOUT: &str =
    "`serve` has no '--timeout <DURATION>'; `runtimeRequestTimeout` limits what it asks of a runtime";
const NO_STORE_WITH_ENDPOINT: &str = "the argument '--endpoint <URI>' cannot be used with '--store <DIR>'";
const NO_STORE: &str = "the argument '--runtime-endpoint <URI>' cannot be used with '--store <DIR>'";

/// The node's image manager: pulls, lists and collects container images.
#[derive(Debug, Parser)]
#[command(name = "imagelet", version, max_term_width = 100, disable_help_flag = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags that every command takes, before or after its name.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Ask this imagelet or CRI runtime: `unix:///PATH`
    ///
    /// A running imagelet, or any CRI runtime (`unix:///run/containerd/containerd.sock`). The variable IMAGELET_ENDPOINT
    /// stands for it.
    #[arg(long, global = true, env = "IMAGELET_ENDPOINT", value_name = "URI", hide_env = true, hide_short_help = true)]
    pub(crate) endpoint: Option<String>,
    /// Use the embedded store in this directory
    ///
    /// The store is opened in this process. The variable IMAGELET_STORE stands for it.
    #[arg(long, global = true, env = "IMAGELET_STORE", value_name = "DIR", hide_env = true, hide_short_help = true)]
    pub(crate) store: Option<PathBuf>,
    // `--store` overrides the runtime in the configuration file. For the daemon, IMAGELET_STORE conflicts with it.
    #[arg(skip)]
    pub(crate) store_wins: bool,
    /// How long to wait for another process that changes the store: `30s`, `2m`, 0 for not at all. Commands that change
    /// the store wait for 30 s, `serve` for 10 s; those that only read need not wait.
    #[arg(long, global = true, value_name = "DURATION", value_parser = parse_wait, hide_short_help = true)]
    pub(crate) lock_timeout: Option<Duration>,
    /// How long a daemon or runtime may take to answer: `30s`, `2m`, 0 for without end; 10 s unless given. Pulls,
    /// collections and checks may take longer while the daemon answers.
    #[arg(long, global = true, value_name = "DURATION", value_parser = parse_wait, hide_short_help = true)]
    pub(crate) timeout: Option<Duration>,
    /// What to log on stderr: `error`, `warn`, `info`, `debug`, `trace`, or a list of `TARGET=LEVEL`. The variable
    /// IMAGELET_LOG stands for it. A daemon logs `info`, a command only what would be lost otherwise.
    #[arg(long, global = true, value_name = "LEVEL", value_parser = parse_log, hide_short_help = true)]
    pub(crate) log_level: Option<String>,
    /// How to print.
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT", hide_short_help = true)]
    pub(crate) output: Format,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the daemon: CRI image service, imagelet's own API, collection.
    #[command(after_help = "Example: imagelet serve --config /etc/imagelet/config.yaml")]
    Serve(Box<ServeArgs>),
    /// Pull images, or find that they are present.
    #[command(after_help = "Example: imagelet pull --platform linux/arm64 docker.io/library/busybox:1.36")]
    Pull(PullArgs),
    /// Make every image of pods present: init, sidecar, ephemeral and ordinary containers, image volumes.
    #[command(after_help = "Example: imagelet ensure -f pod.yaml --secret registry-secret.yaml")]
    Ensure(EnsureArgs),
    /// List images.
    #[command(visible_aliases = ["list", "images"], after_help = "Example: imagelet ls --filter unused=true")]
    Ls(LsArgs),
    /// Show one image.
    #[command(after_help = "Example: imagelet inspect busybox:1.36")]
    Inspect {
        /// Print nothing of the image; exit 1 when it is absent.
        #[arg(short, long)]
        quiet: bool,
        /// Name, id, or unique beginning of an id.
        #[arg(value_name = "REF")]
        image: String,
    },
    /// Show where the bytes are.
    #[command(after_help = "Example: imagelet df -v")]
    Df {
        /// Also image by image.
        #[arg(short, long)]
        verbose: bool,
    },
    /// Remove images with all their names.
    #[command(visible_alias = "rmi", after_help = "Example: imagelet rm busybox:1.36 sha256:3fbc632167424a6d")]
    Rm {
        /// Names, ids, or unique beginnings of ids.
        #[arg(required = true, value_name = "REF")]
        images: Vec<String>,
    },
    /// Remove one name; the image is removed with its last.
    #[command(after_help = "Example: imagelet untag registry.example/app:v1")]
    Untag {
        /// The name to remove.
        #[arg(value_name = "REF")]
        image: String,
    },
    /// Collect unused images.
    #[command(visible_alias = "prune", after_help = "Example: imagelet gc --dry-run --free 10Gi")]
    Gc(GcArgs),
    /// Keep images out of every collection.
    #[command(after_help = "Example: imagelet pin 'registry.example/base/*'")]
    Pin {
        /// A reference, a glob such as `registry.example/base/*`, or a digest.
        pattern: String,
    },
    /// Take a pin back.
    #[command(after_help = "Example: imagelet unpin 'registry.example/base/*'")]
    Unpin {
        /// A reference, a glob such as `registry.example/base/*`, or a digest.
        pattern: String,
    },
    /// List pins: of the operator, the configuration, and sets of the cluster.
    #[command(after_help = "Example: imagelet pins")]
    Pins,
    /// Mount an image's root filesystem (embedded store).
    #[command(after_help = "Example: imagelet mount busybox:1.36 /mnt")]
    Mount(MountArgs),
    /// Unmount what `mount` mounted.
    #[command(after_help = "Example: imagelet unmount /mnt")]
    Unmount {
        /// Where it is mounted.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Give up a mount that is not seen here, as one of another mount namespace: its image may then be removed, and what
        /// was written into it is.
        #[arg(long)]
        force: bool,
    },
    /// Write an image to an OCI layout that other tools and `import` read (embedded store).
    #[command(after_help = "Example: imagelet export registry.example/app:v1 app.tar")]
    Export(ExportArgs),
    /// Read the images of an OCI layout or of `docker save` into the store, without a registry (embedded store).
    #[command(after_help = "Example: imagelet import --pin app.tar")]
    Import(ImportArgs),
    /// Check every byte of images against what was pulled (embedded store).
    #[command(after_help = "Example: imagelet verify --repair")]
    Verify {
        /// Names, ids, or unique beginnings of ids; all images without one.
        #[arg(value_name = "REF")]
        images: Vec<String>,
        /// Fetch again what is damaged, and nothing else.
        #[arg(long)]
        repair: bool,
        /// Show no progress.
        #[arg(short, long)]
        quiet: bool,
    },
    /// Show what happened on the node, and with -f what happens: pulls, failures, collections.
    #[command(after_help = "Example: imagelet events -f --since 2h")]
    Events {
        /// Go on with what happens from now on, and show how far pulls are: bars on a terminal, lines with `-o json`.
        #[arg(short, long)]
        follow: bool,
        /// Only what happened since then: `2h` ago, or an RFC 3339 time.
        #[arg(long, value_name = "TIME", value_parser = parse_since)]
        since: Option<Timestamp>,
    },
    /// Show the history of an image and why: what keeps it, what the next collection would do.
    #[command(after_help = "Example: imagelet why --since 24h registry.example/app:v1")]
    Why {
        /// Only what happened since then: `2h` ago, or an RFC 3339 time.
        #[arg(long, value_name = "TIME", value_parser = parse_since)]
        since: Option<Timestamp>,
        /// Name, id or digest, or the beginning of one; also of a removed image.
        #[arg(value_name = "REF")]
        image: String,
    },
    /// Keep a login for a registry in the docker configuration, once the registry has accepted it.
    #[command(after_help = "Example: imagelet login -u robot --password-stdin registry.example <token")]
    Login(RegistryLoginArgs),
    /// Remove the login for a registry from the docker configuration.
    #[command(after_help = "Example: imagelet logout registry.example")]
    Logout {
        /// HOST or HOST:PORT; Docker Hub without one.
        registry: Option<String>,
    },
    /// Walk the path of a pull at each host of an image, and name the first step that fails and how to correct it. It
    /// writes nothing and needs no daemon; exit 1 where a step fails.
    #[command(after_help = "Example: imagelet doctor registry.example/app:v1")]
    Doctor(DoctorArgs),
    /// Show the daemon or store at a glance.
    #[command(after_help = "Example: imagelet status -v")]
    Status {
        /// Show how pulls come into the runtime, too: what it is, where layers are staged, and the way of the last pulls.
        #[arg(short, long)]
        verbose: bool,
    },
    /// Prefetch images on the nodes of a cluster: create, show and delete `ImageSet` objects.
    #[command(subcommand, after_help = "Example: imagelet prefetch crds")]
    Prefetch(PrefetchCommand),
    /// Run the controller of prefetch in a cluster: waves of nodes, counts, deletion of finished sets.
    #[command(after_help = "Example: imagelet controller --kubeconfig /etc/kubernetes/admin.conf")]
    Controller(ControllerArgs),
    /// Check or show the configuration.
    #[command(subcommand, after_help = "Example: imagelet config show --config /etc/imagelet/config.yaml")]
    Config(ConfigCommand),
    /// Set this host up as a service beside a runtime or for its kubelet, or back.
    #[command(after_help = "Example: imagelet install --role between --dry-run")]
    Install(InstallArgs),
    /// What the containers of the Helm chart run.
    #[command(subcommand, hide = true)]
    Pod(PodCommand),
    /// Print a script that completes commands and flags in a shell.
    #[command(after_help = "Example: source <(imagelet completions bash)")]
    Completions {
        /// Which shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write a manual page for each command into a folder.
    #[command(hide = true)]
    Man {
        /// The folder; it has to exist.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Describe a command with all its options, or show a page of the guide.
    #[command(after_help = "Example: imagelet help registries")]
    Help {
        /// A command, such as `gc` or `config show`, or a page; without one, all of them are listed.
        #[arg(value_name = "COMMAND|PAGE")]
        topic: Vec<String>,
    },
    /// Print the version.
    #[command(after_help = "Example: imagelet version -o json")]
    Version,
}

impl Command {
    pub(crate) fn login(&self) -> Option<&LoginArgs> {
        match self {
            Self::Pull(arguments) => Some(&arguments.login),
            Self::Doctor(arguments) => Some(&arguments.login),
            _ => None,
        }
    }

    pub(crate) fn is_daemon(&self) -> bool {
        matches!(self, Self::Serve(_) | Self::Controller(_))
    }

    /// How the command opens a store without a daemon: for reading or writing, and what happens if the store is absent.
    pub(crate) fn store_access(&self) -> Access {
        match self {
            Self::Serve(_) | Self::Pull(_) | Self::Ensure(_) | Self::Pin { .. } | Self::Import(_) => {
                Access::Write { or_create: true }
            }
            Self::Gc(GcArgs { dry_run: false, .. })
            | Self::Verify { repair: true, .. }
            | Self::Rm { .. }
            | Self::Untag { .. }
            | Self::Unpin { .. }
            | Self::Mount(_)
            | Self::Unmount { .. } => Access::Write { or_create: false },
            _ => Access::Read { or_empty: true },
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// What to pull.
    #[arg(required = true, value_name = "REF")]
    pub(crate) images: Vec<String>,
    #[command(flatten)]
    pub(crate) login: LoginArgs,
    /// When to ask the registry.
    #[arg(long, default_value = "IfNotPresent", default_value_if("platform", ArgPredicate::IsPresent, "Always"), value_parser = ["Always", "IfNotPresent", "Never"])]
    pub(crate) policy: String,
    /// Pull for another kind of machine, such as `linux/arm64` (embedded store).
    ///
    /// Then the policy is `Always`, unless `--policy` says otherwise: an image of that name may be here for this machine.
    #[arg(long, value_name = "OS/ARCH")]
    pub(crate) platform: Option<Platform>,
    /// Print nothing but image ids.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// The credential of a command, in place of the node's.
#[derive(Debug, Args)]
pub(crate) struct LoginArgs {
    /// User and password; `-` reads them from stdin.
    ///
    /// Other users can see a command line before the program can hide it, and a shell keeps it: prefer `-`, `--creds-file`,
    /// the variable `IMAGELET_CREDS`, or `imagelet login`.
    #[arg(long, value_name = "USER:PASS", hide_default_value = true)]
    pub(crate) creds: Option<String>,
    /// Read them from the first line of this file.
    #[arg(long, value_name = "FILE", conflicts_with = "creds")]
    pub(crate) creds_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct RegistryLoginArgs {
    /// HOST or HOST:PORT; Docker Hub without one.
    pub(crate) registry: Option<String>,
    /// The user; asked for on a terminal.
    #[arg(short, long, value_name = "USER")]
    pub(crate) username: Option<String>,
    /// Read the password or token from stdin; without it, it is asked for on a terminal.
    #[arg(long, requires = "username")]
    pub(crate) password_stdin: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// The image to look for.
    #[arg(value_name = "REF")]
    pub(crate) image: String,
    #[command(flatten)]
    pub(crate) login: LoginArgs,
    /// Look for another kind of machine, such as `linux/arm64`.
    #[arg(long, value_name = "OS/ARCH")]
    pub(crate) platform: Option<Platform>,
}

#[derive(Debug, Args)]
pub(crate) struct EnsureArgs {
    /// Manifests in YAML or JSON, any number in a file or folder: Pods and all that has a pod template (Deployment, Job, …),
    /// with the Secrets and ServiceAccounts they name; `-` reads stdin.
    #[arg(short, long = "file", value_name = "POD.yaml", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Manifests of Secrets that pods name in their `imagePullSecrets`, of type `kubernetes.io/dockerconfigjson` or
    /// `kubernetes.io/dockercfg`.
    #[arg(long = "secret", value_name = "FILE")]
    pub(crate) secrets: Vec<PathBuf>,
    /// Print nothing but image ids.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Print ids only.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Only images with `reference=GLOB`, `dangling=true`, `unused=true`, `pinned=true`; repeatable.
    #[arg(short, long = "filter", value_name = "NAME=VALUE")]
    pub(crate) filters: Vec<ImageFilter>,
    /// Understood, as in earlier versions; images without a tag are listed without it.
    #[arg(short, long, hide = true)]
    all: bool,
    /// Also the names by digest.
    #[arg(long)]
    pub(crate) digests: bool,
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command")]
pub(crate) struct GcArgs {
    /// Show the plan, remove nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Collect when the image filesystem is this full, in percent.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub(crate) high: Option<Percent>,
    /// Collect until it is no fuller than this, in percent.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub(crate) low: Option<Percent>,
    /// Free at least this much, whatever the thresholds say: `500M`, `1Gi`.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with_all = ["high", "low"])]
    pub(crate) free: Option<ByteSize>,
    /// Remove every image that is not in use, not pinned and older than `imageMinimumGCAge`.
    #[arg(short, long, conflicts_with_all = ["high", "low", "free"])]
    pub(crate) all_unused: bool,
    /// With `--all-unused`: take younger images, too.
    #[arg(long, requires = "all_unused", conflicts_with_all = ["high", "low", "free"])]
    pub(crate) now: bool,
    /// Remove although `gc.mode` is `shadow`, this once.
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) enforce: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MountArgs {
    /// The image; it must be present.
    #[arg(value_name = "REF")]
    pub(crate) image: String,
    /// Where; the directory must exist.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Writable; what is written is thrown away at unmount.
    #[arg(long)]
    pub(crate) rw: bool,
    /// Let set-user-ID and set-group-ID bits and capabilities of the image's files act.
    #[arg(long)]
    pub(crate) suid: bool,
    /// Let the image's device nodes be opened.
    #[arg(long)]
    pub(crate) dev: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The image. Layers that the store does not keep (`store.keepBlobs`) come from its registry.
    #[arg(value_name = "REF")]
    pub(crate) image: String,
    /// A tar file, which is replaced, or a new folder.
    #[arg(value_name = "FILE|oci:DIR")]
    pub(crate) archive: String,
    /// Show no progress.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// A tar file, plain or compressed by gzip or zstd, or a folder.
    #[arg(value_name = "FILE|oci:DIR")]
    pub(crate) archive: String,
    /// Name the only image of the archive so, instead of what the archive says.
    #[arg(long, value_name = "REF")]
    pub(crate) name: Option<String>,
    /// Take the images for another kind of machine, such as `linux/arm64`.
    #[arg(long, value_name = "OS/ARCH")]
    pub(crate) platform: Option<Platform>,
    /// Pin the images: no collection removes them.
    #[arg(long)]
    pub(crate) pin: bool,
    /// Show no progress.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say whether configuration files would be accepted, the kubelet's and ours alone or one over the other.
    #[command(after_help = "Example: imagelet config check /etc/imagelet/config.yaml")]
    Check {
        /// The file.
        #[arg(value_name = "FILE", required_unless_present_any = ["kubelet_config", "kubelet_config_dir"])]
        file: Option<PathBuf>,
        /// A kubelet's configuration file.
        #[arg(long, value_name = "FILE")]
        kubelet_config: Option<PathBuf>,
        /// The folder of its drop-ins.
        #[arg(long, alias = "config-dir", value_name = "DIR")]
        kubelet_config_dir: Option<PathBuf>,
    },
    /// Print the effective configuration and where each value comes from.
    #[command(after_help = "Example: imagelet config show --config /etc/imagelet/config.yaml")]
    Show(Box<ServeArgs>),
}

impl Cli {
    /// Parses the command line. An endpoint overrides IMAGELET_STORE, but `--store` overrides IMAGELET_ENDPOINT.
    pub(crate) fn read<T: Into<OsString> + Clone>(arguments: impl IntoIterator<Item = T>) -> Result<Self, clap::Error> {
        let mut command = without_empty_variables(kubelet_options::accept_ignored(command()));
        let matches = command.try_get_matches_from_mut(arguments)?;
        let mut cli = Self::from_arg_matches(&matches)?;
        let typed = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
        cli.global.store_wins = typed("store") || !matches!(cli.command, Command::Serve(_) | Command::Config(_));
        if typed("store") {
            cli.global.endpoint = None;
        } else if cli.global.endpoint.is_some() {
            cli.global.store = None;
        }
        if let Command::Help { topic } = &cli.command
            && !help::is_topic(topic)
        {
            let message = format!("no command or page is named '{}'; `imagelet help` lists them", topic.join(" "));
            return Err(command.error(ErrorKind::InvalidSubcommand, message));
        }
        if let Command::Serve(serve) | Command::Config(ConfigCommand::Show(serve)) = &mut cli.command {
            serve.kubelet = kubelet_options::given(&matches);
            serve.ignored = kubelet_options::ignored(&matches);
        }
        let conflict = match &cli.command {
            _ if typed("endpoint") && typed("store") => NO_STORE_WITH_ENDPOINT.to_owned(),
            Command::Gc(GcArgs { high: Some(high), low: Some(low), .. }) if low > high => {
                format!("the argument '--low {}' must not be above '--high {}'", low.get(), high.get())
            }
            Command::Serve(_) if typed("endpoint") => NO_ENDPOINT.to_owned(),
            Command::Serve(_) if typed("timeout") => NO_TIMEOUT.to_owned(),
            Command::Serve(serve) if serve.runtime_endpoint.is_some() && typed("store") => NO_STORE.to_owned(),
            _ => return Ok(cli),
        };
        Err(command.error(ErrorKind::ArgumentConflict, conflict))
    }
}

/// Makes clap treat an empty environment variable as unset.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |argument: &Arg| argument.get_env().is_some_and(is_empty_variable);
    command
        .mut_args(|argument| if is_empty(&argument) { argument.env(Resettable::Reset) } else { argument })
        .mut_subcommands(without_empty_variables)
}
