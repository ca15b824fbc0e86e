//! Packet captures: which verdict of a recording each connection in a capture has.
//!
//! Owns the reading of pcap and pcapng files, the headers of the packets in them, the connections that the packets belong
//! to, and the join with the verdicts of recordings. Judges nothing and prints nothing.
//!
//! A capture is read twice, so that memory does not depend on its length: [`tuples`] finds the addresses in it,
//! [`Recorded`] the connections and verdicts that recordings have for them, and [`Assembly`] the packets of each
//! connection; and once more if the connections show that its clock is another than a recording's (`clock`).

mod assembly;
mod clock;
mod connection;
mod explained;
mod file;
mod head;
mod recorded;
mod tuples;

pub use assembly::Assembly;
pub(crate) use explained::all_outside;
pub use explained::{
    By, End, ExplainedFlow, IcmpLine, PacketLine, ResetLine, SeenAs, SeenLine, Stage, explain,
};
pub use file::{CaptureError, Ending, Packet, read};
pub use head::{Head, Unread, head};
pub use recorded::Recorded;
pub use tuples::{Tuples, canonical};

/// The most tuples of a capture that are told apart.
pub const MAX_TUPLES: usize = 65_536;

/// The tuples of a capture, each in its canonical form.
pub fn tuples(source: impl std::io::Read + Send, length: u64) -> Result<Tuples, CaptureError> {
    let mut tuples = Tuples::default();
    read(source, length, |packet| tuples.add(packet))?;
    Ok(tuples)
}
