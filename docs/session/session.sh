# The session that the README shows, a command on each line. Run it in this folder.
kubectl htc submit fit --image centos --script fit.sh --items runs.txt
kubectl htc wait fit
kubectl htc jobs fit --failed
kubectl htc logs fit/3 --err
kubectl htc retry fit
kubectl htc wait fit-r1
kubectl htc files fit-r1 results
cat results/3/result.txt
