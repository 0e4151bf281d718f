"""What a command needs: measured on each flavor of GPU at hand, kept in the history, and turned into advice.

tiers     the advice: which flavor, why, what it saves and what may go wrong; pure
sampling  memory and work of a GPU while a command runs, by NVML; without a GPU those of its processes instead
advising  the same for all tasks at once: flavor and number of GPUs, what is untried, what is not known; pure
known     what histories, run logs, profiles and a site server's runs tell of tasks
running   the command, on each flavor: through the site server, or on this host
"""
