//! The arguments of `explain-pcap`.

use std::path::PathBuf;

use clap::Args;

use crate::report::Output;

const EXAMPLES: &str = "Examples:
  viptrace explain-pcap node.pcap --recording incident.viptrace
                                   each connection with its verdict
  viptrace explain-pcap node.pcapng --recording a.viptrace b.viptrace -o wide
                                   two nodes' recordings, every packet
  viptrace explain-pcap node.pcap --recording segments/
                                   with the segments of an agent
  viptrace explain-pcap node.pcap --recording incident.viptrace -o json
                                   as records (viptrace schema pcap)

Captures: `tcpdump -i any -w node.pcap` on the node, while viptrace records.";

const EXIT_STATUS: &str = "Exit status:
  0  no captured connection is faulty
  1  could not run
  2  wrong usage
  3  captured connections are faulty
  4  no captured connection is faulty, but a part of a file could not be read,
     or all of the capture is outside the recordings' time";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}"))]
pub struct ExplainPcapArgs {
    /// A packet capture, pcap or pcapng: of one interface or of all (`tcpdump -i any`)
    #[arg(value_name = "CAPTURE")]
    capture: PathBuf,
    /// The recordings of the time, of one node or several, and folders of them
    #[arg(long, value_name = "FILE|DIR", required = true, num_args = 1..)]
    recording: Vec<PathBuf>,
    /// How to print the connections
    #[arg(short, long, value_name = "FORMAT", default_value = "table", help_heading = "Output")]
    output: Output,
}

/// The options of `viptrace explain-pcap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExplainPcapOptions {
    pub(crate) capture: PathBuf,
    pub(crate) recordings: Vec<PathBuf>,
    pub(crate) output: Output,
}

impl ExplainPcapArgs {
    pub(crate) fn resolve(self) -> ExplainPcapOptions {
        ExplainPcapOptions { capture: self.capture, recordings: self.recording, output: self.output }
    }
}
