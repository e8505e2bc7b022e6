//! The list of cases, which becomes an enum here and a test for each where an adapter is proven.

/// Gives the list to another macro: `Variant test_name "what it proves";` for each case, behind the arguments in brackets.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_cases {
    ([$($then:tt)+] $($arguments:tt)*) => {
        $($then)+! { [$($arguments)*]
            Unchanged what_is_published_arrives_unchanged
                "Payload, headers, type and id arrive as the producer made them.";
            Unsettled what_was_not_settled_comes_again
                "Only an ack takes a message away; what an assignment left unsettled is delivered by the next one (K14).";
            AnyOrder acks_in_any_order_settle_what_they_name
                "Acks come alone and in groups, in no order, and settle nothing else.";
            SettledOnce a_delivery_is_settled_once
                "A second settle of a token, or a token that was never given out, settles nothing.";
            StaleTokens tokens_of_an_ended_assignment_settle_nothing_in_the_next
                "A token is void with its assignment.";
            HandedBack what_is_handed_back_comes_again
                "A hand-back never loses a message.";
            Delayed what_is_handed_back_with_a_delay_comes_again_after_it
                "A native delay is kept, and others pass meanwhile.";
            Counted deliveries_are_counted
                "The broker's counter begins at 0 and grows with each delivery.";
            Prefetch no_more_than_the_prefetch_is_unsettled
                "An assignment delivers as many as were asked for, and one more for each that is settled.";
            DroppedWaits a_dropped_wait_for_a_delivery_loses_none
                "`Deliveries::next` can be dropped at every await point.";
            Stopped what_was_taken_before_a_stop_can_still_be_settled
                "After `Deliveries::stop` nothing new comes, and what was taken is settled as before.";
            Lease what_is_in_work_is_kept_beyond_its_lease
                "The adapter extends what is unsettled, and nothing that is left behind.";
            AckAfterCommit an_ack_comes_after_the_commit
                "Each message is settled once, after its commit.";
            LostAck a_lost_ack_bills_once
                "An ack that is lost with its connection brings a duplicate.";
            SuddenEnd a_sudden_end_at_each_step_bills_once
                "Everything of an inbox is dropped at each step of the path, and nothing is settled by that.";
            Killed a_process_killed_at_each_step_bills_once
                "A process dies by SIGKILL at each step of the path.";
            Processes processes_share_a_queue_while_one_dies
                "Two processes share a queue, one is killed, another one joins.";
            FourProcesses four_processes_share_a_queue_while_one_dies
                "Four do, and each has a part of the load.";
            Window what_takes_longer_than_the_settle_window_bills_once
                "The broker takes a delivery away while its handler runs.";
            Retried a_failed_message_is_tried_again_while_others_pass
                "A failure is handed back with a delay or held; completions are out of order.";
            Poison poison_among_good_messages_becomes_a_dead_letter
                "What can never be handled is kept, and acked; the others pass.";
            BackPressure a_busy_inbox_takes_no_more_than_its_prefetch
                "With slow handlers no more is taken than the builder says.";
            Grace a_shutdown_with_grace_finishes_what_runs
                "What runs is finished and acked, the rest handed back at once.";
            NoGrace a_shutdown_without_grace_loses_nothing
                "What runs is rolled back and handed back with the rest.";
            Cut acks_for_a_cut_connection_are_void
                "The connection breaks while a handler runs; its ack is stale, the redelivery a duplicate.";
            Restart after_a_restart_of_the_broker_the_inbox_goes_on
                "The broker stops and starts again.";
            Crash after_a_crash_of_the_broker_the_inbox_goes_on
                "The broker is killed and starts again.";
            FanOut every_consumer_bills_once
                "A delivery for two consumers, one of which fails, is acked once when both are done (K16).";
            OddIds odd_ids_are_kept_apart_and_missing_ones_are_dead_letters
                "Ids are compared byte by byte; a message without one is kept.";
            TwoInboxes two_inboxes_share_a_queue
                "Two inboxes consume one queue whose producer repeats itself.";
            TenThousand ten_thousand_messages_with_duplicates_bill_each_once
                "10,000 messages, 30 % of them duplicates.";
        }
    };
}

/// Makes one test of each [`Case`](crate::testing::conformance::Case), for a type that is a
/// [`Rig`](crate::testing::conformance::Rig). One suite to a module.
///
/// Besides them there are `which_cases_apply`, which says on the standard error which do not and why, and
/// `consumer_process`, which other tests start in processes of their own.
///
/// The example at [`conformance`](crate::testing::conformance) has one.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_suite {
    ($rig:ty) => {
        $crate::__conformance_cases! { [$crate::__conformance_tests] $rig }

        /// Which cases there are, which of them do not apply, and why.
        #[test]
        fn which_cases_apply() {
            $crate::testing::conformance::tell::<$rig>();
        }

        /// Started by others in a process of its own; by itself it does nothing.
        #[test]
        fn consumer_process() {
            $crate::testing::conformance::consumer_process::<$rig>();
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    ([$rig:ty] $($case:ident $name:ident $doc:literal;)+) => {
        $(
            #[test]
            fn $name() {
                $crate::testing::conformance::test::<$rig>(
                    $crate::testing::conformance::Case::$case,
                    module_path!(),
                );
            }
        )+
    };
}
