//! IPVS's choices as an agent records them: kept in the kernel by the client's end, like NAT's decisions, and reported when
//! a failure meets their connection or when it is one of the sample.

use aya_ebpf::{
    macros::map,
    maps::{LruHashMap, PerCpuArray},
};
use tracer_ebpf::{Choice, End, Header, Hook, IP_VS_CONN_F_TEMPLATE, IpvsRecord, Kind, SAME_IPVS_CALL_NS};

use crate::{filter::AF_INET, lookup::look_up, output, recorder, turns::turns, words::Words};

/// Resized by user space: without a recorder it has room for one entry.
#[map]
static CHOICES: LruHashMap<End, Choice> = LruHashMap::with_max_entries(1, 0);

/// What one call of `ip_vs_conn_new` leaves to the next one on this CPU.
#[map]
static CALL: PerCpuArray<Call> = PerCpuArray::with_max_entries(1, 0);

#[repr(C)]
struct Call {
    /// The last persistence template.
    template: Template,
    /// The choice that is being kept. It has no room on the stack: all functions of a chain of calls share 512 bytes, in which
    /// 5.10 and 6.1 give each a multiple of 32 (`check_max_stack_depth`, kernel/bpf/verifier.c).
    choice: Choice,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Template {
    time_ns: u64,
    virtual_address: [u32; 4],
    destination: [u32; 4],
}

/// Keeps a choice. A template is kept with the connection that it was made for.
#[inline(never)]
#[expect(clippy::needless_borrows_for_generic_args, reason = "by value, they would be copied on the stack")]
pub(crate) fn keep(record: &IpvsRecord) {
    let Some(call) = CALL.get_ptr_mut(0) else { return };
    // SAFETY: a slot of a map's array, of this CPU alone: valid and aligned for as long as the program runs, and written by this
    // program only, which the kernel does not nest.
    let Call { template, choice } = unsafe { &mut *call };
    let virtual_address = words(&record.virtual_address, record.family);
    let destination = words(&record.destination, record.dest_family);
    if record.client_port == 0 || record.flags & IP_VS_CONN_F_TEMPLATE != 0 {
        *template = Template { time_ns: record.header.time_ns, virtual_address, destination };
        return;
    }
    let fits = recorder::is_same_address(template.virtual_address, virtual_address)
        && recorder::is_same_address(template.destination, destination);
    let made_ns = template.time_ns;
    template.time_ns = 0;
    let is_new = made_ns != 0 && record.header.time_ns.wrapping_sub(made_ns) < SAME_IPVS_CALL_NS;
    let client = End {
        address: words(&record.client, record.family),
        port: record.client_port,
        protocol: record.protocol,
    };
    *choice = Choice {
        time_ns: record.header.time_ns,
        template_ns: if is_new && fits { made_ns } else { 0 },
        netns: record.header.netns,
        flags: record.flags,
        family: record.family,
        dest_family: record.dest_family,
        virtual_port: record.virtual_port,
        destination_port: record.destination_port,
        virtual_address,
        destination,
        is_reported: 0,
        reserved: 0,
    };
    // A full LRU map gives up its oldest entries; an update fails only where a CPU finds none that is free.
    let _ = CHOICES.insert(&client, &*choice, 0);
    if recorder::is_sampled(Words::of(&client)) {
        hand_over(&client);
    }
}

/// The words of an address; IPv4 is in the first, and what follows it in the kernel's memory means nothing.
#[inline(always)]
fn words(bytes: &[u8; 16], family: u16) -> [u32; 4] {
    // SAFETY: it reads the array's own bytes, at any alignment.
    let [first, rest @ ..] = unsafe { bytes.as_ptr().cast::<[u32; 4]>().read_unaligned() };
    let [second, third, fourth] = if family == AF_INET { [0; 3] } else { rest };
    [first, second, third, fourth]
}

/// Whether a choice for a client is kept.
#[inline(always)]
pub(crate) fn is_kept(client: &End) -> bool {
    look_up(&CHOICES, client).is_some()
}

/// Reports the choice that is kept for a client with the template that was made for it, unless it was reported before.
#[inline(never)]
pub(crate) fn hand_over(client: &End) {
    let Some(choice) = look_up(&CHOICES, client) else { return };
    // SAFETY: a map's value: valid and aligned for as long as the program runs. Another CPU may replace it meanwhile by
    // the choice of a later connection of the same client; the record is then of either, or a mixture whose tuples fit
    // no flow.
    unsafe {
        if (*choice).is_reported != 0 {
            return;
        }
        (*choice).is_reported = 1;
        // The template comes first, if one was made.
        for turn in turns::<2>() {
            report(choice, client, turn == 0);
        }
    }
}

/// Reports the choice, or the template that was made for it. Each value is read where it is written, so that few of them are
/// kept on the stack.
///
/// # Safety
///
/// `choice` must be valid and aligned.
#[inline(always)]
unsafe fn report(choice: *const Choice, client: &End, of_template: bool) {
    // SAFETY: the caller promises it.
    let time_ns = || unsafe { if of_template { (*choice).template_ns } else { (*choice).time_ns } };
    if time_ns() == 0 {
        return;
    }
    let Some(mut entry) = output::reserve::<IpvsRecord>(Hook::IpVsConnNew) else { return };
    let record = entry.as_mut_ptr();
    // SAFETY: the record is the ring buffer's, of its size and alignment, and this program's alone until it is
    // submitted. Every field is written before it is. The caller promises the same for the choice.
    unsafe {
        let header = output::header(Hook::IpVsConnNew, Kind::Ipvs, (*choice).netns);
        (*record).header = Header { time_ns: time_ns(), ..header };
        (*record).flags = (*choice).flags | if of_template { IP_VS_CONN_F_TEMPLATE } else { 0 };
        (*record).family = (*choice).family;
        (*record).dest_family = (*choice).dest_family;
        output::write_words(&client.address, (&raw mut (*record).client).cast());
        output::write_words(&(*choice).virtual_address, (&raw mut (*record).virtual_address).cast());
        output::write_words(&(*choice).destination, (&raw mut (*record).destination).cast());
        (*record).client_port = if of_template { 0 } else { client.port };
        (*record).virtual_port = (*choice).virtual_port;
        (*record).destination_port = (*choice).destination_port;
        (*record).protocol = client.protocol;
    }
    output::submit(entry);
}
